/** Runs plugins natively: batches as the host sends them, and answers as it reads them. */
import { outcomes, reply } from "./batch.js";
import { Failure } from "./failure.js";
import { stringify } from "./json.js";
import { decode, encode } from "./msgpack.js";
import { forget, native } from "./native.js";
import * as plugins from "./plugin.js";
import { Instance } from "./sink.js";

/** Forgets settings, log lines, answers, the store and numbers: for `beforeEach`. */
export function reset() {
  forget();
}

/** Sets what questions are answered with: a function of a statement's SQL and one set of parameters, which gives its rows. */
export function setQuery(answer) {
  native.answer = answer;
}

/** Sets what requests are answered with: a function of the request, which gives an answer or throws a Failure. */
export function setHttp(respond) {
  native.respond = respond;
}

/** What the store has: an object of keys and texts. */
export function stored() {
  const text = (bytes) => new TextDecoder().decode(bytes);
  return Object.fromEntries([...native.state].map(([key, bytes]) => [key, text(bytes)]));
}

/** What a number came to: `name`, or `name{label="value"}`. */
export function metric(series) {
  return native.metrics.get(series);
}

/** Sets what `config.get` gives, in place of what was set before. */
export function setConfig(settings) {
  native.settings = new Map(Object.entries(settings));
}

/** The log lines since the last call. */
export function takeLog() {
  return native.lines.splice(0);
}

/** An insert of a row, with id `1`, to be given to a plugin's `transform`. */
export function change(row, rest = {}) {
  return {
    operation: "insert", origin: "stream", id: "1", row, old: null, lsn: "0/1", commitTimeUs: 0, sequence: 0, ...rest,
  };
}

/** What `describe` gives for a plugin. */
export function describe(plugin) {
  return JSON.parse(plugins.describe(plugin, { name: "test", version: "0.0.0" }));
}

/** A table as the plugin asks for it. */
export function table(plugin, options = {}) {
  return new Table(plugin, options);
}

function typeOf(value) {
  if (typeof value === "boolean") return "bool";
  if (typeof value === "bigint" || Number.isInteger(value)) return "integer";
  if (typeof value === "number") return "float";
  if (Array.isArray(value)) return "array";
  return typeof value === "object" ? "json" : "text";
}

class Table {
  #plugin;
  #origin;
  #columns;
  #types;
  #changes = [];

  constructor(plugin, { columns, types = {}, origin = "stream" }) {
    const asked = columns ?? plugin.columns;
    if (!asked) throw new TypeError("the plugin reads all columns: name those of the table, `{ columns: […] }`");
    this.#plugin = plugin;
    this.#origin = origin;
    this.#columns = [...asked];
    this.#types = { ...types };
  }

  /** A new row; columns that are not named were not sent. */
  insert(id, row) {
    return this.#push("insert", id, row, null);
  }

  /** A row that a backfill read. */
  read(id, row) {
    return this.#push("read", id, row, null);
  }

  /** A new version of a row. */
  update(id, row, old = null) {
    return this.#push("update", id, row, old);
  }

  /** The end of a row. */
  delete(id, old) {
    return this.#push("delete", id, null, old);
  }

  #push(operation, id, row, old) {
    this.#changes.push({ operation, id, row, old });
    return this;
  }

  #values(row) {
    if (row === null) return [null, []];
    const stranger = Object.keys(row).find((name) => !this.#columns.includes(name));
    if (stranger !== undefined) throw new TypeError(`the table has no column \`${stranger}\``);
    const absent = [];
    const values = this.#columns.map((name, at) => {
      const value = row[name];
      if (value === undefined) absent.push(at);
      else if (value !== null) this.#types[name] ??= typeOf(value);
      if (value === undefined || value === null) return null;
      return this.#plugin.raw.includes(name) ? stringify(value) : value;
    });
    return [values, absent];
  }

  /** The batch as the host would send it. */
  request() {
    const changes = this.#changes.map(({ operation, id, row, old }, sequence) => {
      const [values, absent] = this.#values(row);
      const [before, absentBefore] = this.#values(old);
      const missing = absent.length + absentBefore.length > 0 ? [absent, absentBefore] : null;
      return [operation, id, values, before, "0/1", 0, sequence, missing, {}];
    });
    const columns = this.#columns;
    const types = columns.map((name) => this.#types[name] ?? "text");
    const relation = { schema: "public", table: "test", columns, types, key: [] };
    return stringify({ v: 1, relation, origin: this.#origin, changes });
  }

  /** Runs the plugin over the changes; throws a Failure where the whole batch failed. */
  run() {
    const answered = outcomes(this.#plugin, this.request());
    JSON.parse(reply(answered)); // what the host would get is JSON
    return answered.map((outcome) => new Outcome(outcome));
  }
}

/** An outcome as the host would read it. */
export class Outcome {
  constructor({ kind, documents = [], failure = null }) {
    this.kind = kind;
    this.documents = documents.map(({ id, destination, text }) => ({ id, destination, text, body: JSON.parse(text) }));
    this.failure = failure;
  }

  /** The one document, where it is one, as JavaScript reads it. */
  get document() {
    return this.documents.length === 1 ? this.documents[0].body : undefined;
  }

  /** Its text. */
  get text() {
    return this.documents.length === 1 ? this.documents[0].text : undefined;
  }
}

/** Opens a sink with settings, as the host does; throws a Failure where it refuses them. */
export function open(plugin, settings = {}) {
  return new Opened(plugin, settings);
}

class Opened {
  #instance;

  constructor(plugin, settings) {
    this.#instance = new Instance(plugin);
    this.#instance.open(JSON.stringify(settings));
  }

  /** Delivers documents; gives a result for each: null where it was accepted, else the Failure. */
  deliver(documents, { entity = "public.test", origin = "stream", generation = 1, place } = {}) {
    const destinations = [...new Set(documents.map(({ destination = "test" }) => destination))];
    const elements = documents.map(({ destination = "test", id, body = null }) => {
      const text = body === null || typeof body === "string" ? body : stringify(body);
      const bytes = text === null ? null : new TextEncoder().encode(text);
      return [bytes === null ? "delete" : "upsert", id, destinations.indexOf(destination), bytes, 1, 0, {}];
    });
    const placed = place === undefined || place === null ? {} : { place };
    const request = { v: 1, entity, origin, generation, ...placed, destinations, documents: elements };
    const results = decode(this.#instance.deliver(encode(request)));
    return results.map(([tag, failureClass, code, message, afterMs]) =>
      tag === 0 ? null : new Failure(failureClass, code, message, { afterMs }));
  }

  /** Empties a destination. */
  purge(destination) {
    this.#instance.purge(destination);
  }

  /** Makes an empty place beside what readers see; gives whether they see anything. */
  begin(destination, place) {
    return this.#instance.begin(destination, place);
  }

  /** Shows a place to the readers of its destination. */
  switch(destination, place) {
    this.#instance.switch(destination, place);
  }

  /** Removes a place that is of no use any more. */
  abandon(destination, place) {
    this.#instance.abandon(destination, place);
  }
}
