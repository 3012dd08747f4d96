/**
 * JSON that keeps what JavaScript's own cannot: texts that stand for themselves, and integers beyond 2^53.
 */
import { Failure } from "./failure.js";

/** The host takes documents that are nested no deeper. */
const DEPTH = 128;
/**
 * Stands for a raw text until the document around it is written. A document may say the same by chance; then the
 * numbers do not match, and it is written in the slow way.
 */
const MARK = "\u0091raw\u0092";
const QUOTED_MARK = JSON.stringify(MARK);

/** The raw texts of what is being written; null while nothing is. */
let pending = null;

/** Says that a text is known to be JSON. */
const KNOWN = Symbol("known to be JSON");

/**
 * JSON text that stands as it is in a document: digits of numbers, order and repetition of keys and white space are
 * kept. Columns that a transform names in `raw` come as such.
 */
export class RawJson {
  /** @param {string} text one JSON value */
  constructor(text, known) {
    if (known !== KNOWN) {
      JSON.parse(text); // a text that is none would spoil the answers of its whole batch
      text = text.trim();
    }
    this.text = text;
  }

  /** The value, with JavaScript's numbers. */
  parse() {
    return JSON.parse(this.text);
  }

  toJSON() {
    if (pending === null) return this.parse();
    pending.push(this.text);
    return MARK;
  }
}

/** A part of the host's text, which is known to be JSON. */
export function rawPart(text) {
  return new RawJson(text, KNOWN);
}

/**
 * A numeric column (a string) as a JSON number with all its digits; null for NULL, `NaN` and the infinities, which
 * are no JSON numbers.
 */
export function jsonNumber(text) {
  if (text === null || text === undefined) return null;
  try {
    return typeof JSON.parse(text) === "number" ? new RawJson(text, KNOWN) : null;
  } catch {
    return null;
  }
}

// What runs for each row is written plainly: an engine without a compiler takes its time for patterns, closures and
// calls.

/** A document as JSON text. */
export function stringify(value) {
  const outer = pending;
  const raws = (pending = []);
  let text;
  try {
    text = JSON.stringify(isPlain(value) ? marked(value, raws) : value);
  } catch (error) {
    // A bigint or a cycle is a TypeError; the slow way takes the one and refuses the other.
    if (!(error instanceof TypeError)) throw error;
    return slowly(value);
  } finally {
    pending = outer;
  }
  if (text === undefined) throw unwritable(`${typeof value} is no JSON`);
  if (raws.length === 0) return text;
  const parts = text.split(QUOTED_MARK);
  if (parts.length !== raws.length + 1) return slowly(value);
  let out = parts[0];
  for (let at = 0; at < raws.length; at++) out += raws[at] + parts[at + 1];
  return out;
}

/** Whether a value is an object that writes itself in no way of its own: what most transforms answer. */
export function isPlain(value) {
  return value !== null && value !== undefined && value.constructor === Object && value.toJSON === undefined;
}

/** An object with marks in place of raw texts: a call of `toJSON` would cost as much as all the rest. */
function marked(value, raws) {
  const names = Object.keys(value);
  const copy = {};
  for (let at = 0; at < names.length; at++) {
    const name = names[at];
    let field = value[name];
    if (field instanceof RawJson) {
      raws.push(field.text);
      field = MARK;
    }
    copy[name] = field;
  }
  return copy;
}

function unwritable(problem) {
  return Failure.poison("document", `the document cannot be written as JSON: ${problem}`);
}

function slowly(value) {
  const outer = pending;
  pending = null;
  try {
    return write(value, "", 0) ?? "null";
  } finally {
    pending = outer;
  }
}

/** What JSON.stringify does, with raw texts and bigints; undefined where it leaves a value out. */
function write(value, key, depth) {
  if (value instanceof RawJson) return value.text;
  if (typeof value === "bigint") return value.toString();
  if (value !== null && typeof value === "object" && typeof value.toJSON === "function") {
    return write(value.toJSON(key), key, depth + 1);
  }
  if (value === null || typeof value !== "object" || isBoxed(value)) return JSON.stringify(value);
  if (depth >= DEPTH) throw unwritable(`it is nested deeper than ${DEPTH}, or contains itself`);
  if (Array.isArray(value)) {
    return `[${value.map((item, at) => write(item, String(at), depth + 1) ?? "null").join(",")}]`;
  }
  const entries = [];
  for (const name of Object.keys(value)) {
    const text = write(value[name], name, depth + 1);
    if (text !== undefined) entries.push(`${JSON.stringify(name)}:${text}`);
  }
  return `{${entries.join(",")}}`;
}

const isBoxed = (value) =>
  value instanceof String || value instanceof Number || value instanceof Boolean;

// Reading. The texts are the host's, and known to be JSON.

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const BRACKET = 0x5b;
const BRACKET_END = 0x5d;
const BRACE = 0x7b;
const COMMA = 0x2c;
const COLON = 0x3a;

const STRUCTURE = /["[\]{}]/g;
const SCALAR_END = /[\s,\]}]|$/g;
const SOLID = /[^\s]|$/g;

function search(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text)?.index ?? text.length;
}

/** The first place from `at` on that is no white space. */
function solid(text, at) {
  return text.charCodeAt(at) > 0x20 ? at : search(SOLID, text, at);
}

/** The end of a string that begins at `at`. */
function stringEnd(text, at) {
  for (let end = text.indexOf('"', at + 1); ; end = text.indexOf('"', end + 1)) {
    if (end < 0) throw new SyntaxError("a string without an end");
    let first = end;
    while (text.charCodeAt(first - 1) === BACKSLASH) first -= 1;
    if ((end - first) % 2 === 0) return end + 1;
  }
}

/** The end of a value that begins at `at`. */
function valueEnd(text, at) {
  const first = text.charCodeAt(at);
  if (first === QUOTE) return stringEnd(text, at);
  if (first !== BRACKET && first !== BRACE) return search(SCALAR_END, text, at);
  let depth = 1;
  for (at += 1; depth > 0; ) {
    STRUCTURE.lastIndex = at;
    if (!STRUCTURE.test(text)) throw new SyntaxError("a value without an end");
    at = STRUCTURE.lastIndex;
    const found = text.charCodeAt(at - 1);
    if (found === QUOTE) at = stringEnd(text, at - 1);
    else if (found === BRACKET || found === BRACE) depth += 1;
    else depth -= 1;
  }
  return at;
}

/** Calls `item(index, start, end)` for each element of an array; gives the array's end. */
function eachItem(text, at, item) {
  at = solid(text, at + 1);
  for (let index = 0; text.charCodeAt(at) !== BRACKET_END; index++) {
    const end = item(index, at) ?? valueEnd(text, at);
    at = solid(text, end);
    if (text.charCodeAt(at) === COMMA) at = solid(text, at + 1);
  }
  return at + 1;
}

/** Where the value of a key of an object begins; -1 where it has no such key. */
function entry(text, key) {
  let at = solid(text, solid(text, 0) + 1);
  while (text.charCodeAt(at) === QUOTE) {
    const keyEnd = stringEnd(text, at);
    const name = text.slice(at + 1, keyEnd - 1);
    at = solid(text, keyEnd);
    if (text.charCodeAt(at) === COLON) at = solid(text, at + 1);
    if (name === key) return at;
    at = solid(text, valueEnd(text, at));
    if (text.charCodeAt(at) === COMMA) at = solid(text, at + 1);
  }
  return -1;
}

/** A request, with the columns at `positions` of new and old rows read with all their digits. */
export function readExactly(text, positions) {
  const kept = [];
  const taken = [];
  let from = 0;
  const column = (index, start) => {
    if (!positions.has(index)) return undefined;
    const end = valueEnd(text, start);
    taken.push(parseExactly(text.slice(start, end)));
    kept.push(text.slice(from, start), "0");
    from = end;
    return end;
  };
  const element = (index, start) => {
    const isRow = (index === 2 || index === 3) && text.charCodeAt(start) === BRACKET;
    return isRow ? eachItem(text, start, column) : undefined;
  };
  eachItem(text, entry(text, "changes"), (_, start) => eachItem(text, start, element));
  kept.push(text.slice(from));
  const request = JSON.parse(kept.join(""));
  let next = 0;
  for (const change of request.changes) {
    for (const row of [change[2], change[3]]) {
      if (!row) continue;
      for (let index = 0; index < row.length; index++) {
        if (positions.has(index)) row[index] = taken[next++];
      }
    }
  }
  return request;
}

/** Whether integers of a value (a column, or an array of such) lost digits when they were parsed. */
export function lostDigits(value) {
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value);
  if (typeof value !== "object" || !Array.isArray(value)) return false;
  for (let at = 0; at < value.length; at++) {
    const item = value[at];
    // The items of an array are of one type: a text says that no other is a number.
    if (typeof item === "string" || typeof item === "boolean") return false;
    if (lostDigits(item)) return true;
  }
  return false;
}

/** A column's text, with integers beyond 2^53 as bigint. */
export function parseExactly(text) {
  if (text.charCodeAt(0) === BRACKET) {
    const items = [];
    eachItem(text, 0, (_, start) => {
      const end = valueEnd(text, start);
      items.push(parseExactly(text.slice(start, end)));
      return end;
    });
    return items;
  }
  const value = JSON.parse(text);
  return lostDigits(value) && /^-?\d+$/.test(text) ? BigInt(text) : value;
}
