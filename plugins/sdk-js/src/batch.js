/** A whole batch: from the host's text to the reply's (`wit/v1/payload-json.md`). */
import { Failure, done, failureOf, told } from "./failure.js";
import { isPlain, lostDigits, readExactly, stringify } from "./json.js";
import { Document, skip } from "./plugin.js";
import { malformed, readerOf } from "./rows.js";

/**
 * Runs a plugin over a request and gives the reply. Throws a Failure where the whole batch cannot be answered.
 */
export function run(plugin, text) {
  const changes = changesOf(plugin, text);
  // What runs for each row is written plainly, as in `json.js`.
  let out = "[";
  for (let at = 0; at < changes.length; at++) {
    if (at > 0) out += ",";
    out += line(plugin, changes[at]);
  }
  return out + "]";
}

/** The outcome of one change as it is written; one document, as most are, without an object between. */
function line(plugin, change) {
  try {
    const answered = asked(plugin, change);
    if (isPlain(answered) && answered.then === undefined) return '{"emit":[{"document":' + stringify(answered) + "}]}";
    return written(outcome(answered));
  } catch (thrown) {
    return written(failed(thrown));
  }
}

/** The text of a reply. */
export function reply(outcomes) {
  return `[${outcomes.map(written).join(",")}]`;
}

/** The outcomes before they are written: one for each change, in order. */
export function outcomes(plugin, text) {
  return changesOf(plugin, text).map((change) => answer(plugin, change));
}

/** The changes of a batch, which the plugin has prepared itself for. */
function changesOf(plugin, text) {
  const { relation, origin, changes } = read(plugin, text);
  const rows = readerOf(relation.columns, plugin.raw);
  for (let at = 0; at < changes.length; at++) changes[at] = changeOf(rows, origin, changes[at]);
  if (plugin.prepare !== undefined) prepare(plugin, changes.filter(({ row }) => row !== null));
  return changes;
}

/** What it throws is a failure of the whole batch. */
function prepare(plugin, changes) {
  try {
    done(plugin.prepare(changes), "`prepare`");
  } catch (thrown) {
    throw failureOf(thrown);
  }
}

function read(plugin, text) {
  try {
    const request = JSON.parse(text);
    check(plugin, request);
    const lost = columnsThatLostDigits(request, plugin.raw);
    return lost.size === 0 ? request : readExactly(text, lost);
  } catch (error) {
    if (error instanceof Failure) throw error;
    if (error instanceof SyntaxError || error instanceof TypeError) throw malformed(error.message);
    // Too deep or too large, for this engine: of one row, which the host finds by splitting.
    throw Failure.poison("batch", `the batch cannot be read: ${error.name}: ${error.message}`);
  }
}

function check(plugin, request) {
  if (request.v !== 1) {
    throw Failure.fatal("payload-version", `this plugin reads payload version 1, the host sent ${request.v}`);
  }
  const { columns, types } = request.relation ?? {};
  if (!Array.isArray(columns) || !Array.isArray(types)) throw malformed("it names no columns");
  if (!Array.isArray(request.changes)) throw malformed("it has no changes");
  const { columns: wanted } = plugin;
  if (wanted && (wanted.length !== columns.length || wanted.some((name, at) => name !== columns[at]))) {
    throw Failure.fatal("columns", `the host sent the columns ${columns.join(", ")}; asked were ${wanted.join(", ")}`);
  }
}

/** Positions of columns with integers that a JavaScript number does not keep. */
function columnsThatLostDigits({ relation: { columns, types }, changes }, raw) {
  const suspects = [];
  for (let at = 0; at < types.length; at++) {
    if ((types[at] === "integer" || types[at] === "array") && !raw.includes(columns[at])) suspects.push(at);
  }
  const found = new Set();
  if (suspects.length === 0) return found;
  for (let row = 0; row < changes.length; row++) {
    const change = changes[row];
    if (change[2]) findLost(change[2], suspects, found);
    if (change[3]) findLost(change[3], suspects, found);
  }
  return found;
}

function findLost(values, suspects, found) {
  for (let at = 0; at < suspects.length; at++) {
    if (lostDigits(values[suspects[at]])) found.add(suspects[at]);
  }
}

/** A change as a transform gets it; without a row where none was sent. */
function changeOf(rows, origin, elements) {
  const absent = elements[7];
  const old = elements[3] ? rows.row(elements[3], absent ? absent[1] : null) : null;
  const row = elements[2] ? rows.row(elements[2], absent ? absent[0] : null) : old;
  return {
    operation: elements[0],
    origin,
    id: elements[1],
    row,
    old,
    lsn: elements[4],
    commitTimeUs: elements[5],
    sequence: elements[6],
  };
}

function asked(plugin, change) {
  if (change.row === null) throw Failure.poison("no-row", "the change has neither a new nor an old row");
  return plugin.transform(change);
}

/** The outcome of one change. */
function answer(plugin, change) {
  try {
    return outcome(asked(plugin, change));
  } catch (thrown) {
    return failed(thrown);
  }
}

const failed = (thrown) => ({ kind: "failed", failure: failureOf(thrown) });

const DELETE = { kind: "delete" };
const SKIP = { kind: "skip" };

function outcome(answered) {
  if (answered === null) return DELETE;
  if (answered === skip) return SKIP;
  if (answered === undefined) {
    throw Failure.poison("no-answer", "the transform returned nothing; null says that the row has no document");
  }
  done(answered, "the transform");
  if (answered instanceof Document) return { kind: "emit", documents: [emitted(answered)] };
  if (!Array.isArray(answered)) {
    return { kind: "emit", documents: [{ id: null, destination: null, text: stringify(answered) }] };
  }
  if (answered.length === 0) return DELETE;
  if (!answered.every((item) => item instanceof Document)) {
    throw Failure.poison("answer", "an array is answered that has other items than what `document(…)` gives");
  }
  return { kind: "emit", documents: answered.map(emitted) };
}

function emitted({ id, destination, body }) {
  return { id, destination, text: stringify(body) };
}

/** An outcome in the reply. */
function written({ kind, documents, failure }) {
  if (kind === "emit") {
    let out = '{"emit":[';
    for (let at = 0; at < documents.length; at++) out += (at === 0 ? "" : ",") + framed(documents[at]);
    return out + "]}";
  }
  if (kind !== "failed") return '"' + kind + '"';
  return JSON.stringify({ failed: told(failure) });
}

function framed(document) {
  let out = "{";
  if (document.id !== null) out += '"id":' + JSON.stringify(document.id) + ",";
  if (document.destination !== null) out += '"destination":' + JSON.stringify(document.destination) + ",";
  return out + '"document":' + document.text + "}";
}
