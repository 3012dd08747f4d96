/** Rows: from the values of a change to an object with a field for each column. */
import { Failure } from "./failure.js";
import { rawPart } from "./json.js";

/** A batch that is not as `wit/v1/payload-json.md` has it. */
export function malformed(problem) {
  return Failure.fatal("batch", `the batch is malformed: ${problem}`);
}

/** The reader that was used last: a plugin's batches have the same columns again and again. */
let last = null;

/** The reader of rows with these columns, of which those that `raw` names come as text. */
export function readerOf(columns, raw) {
  if (last === null || !last.reads(columns, raw)) last = new Reader(columns, raw);
  return last;
}

class Reader {
  /** Plain fields: private ones cost more in an engine without a compiler. */
  columns;
  raw;
  /** For each column whether it is raw. */
  texts;
  make;

  constructor(columns, raw) {
    this.columns = columns;
    this.raw = raw;
    this.texts = columns.map((name) => raw.includes(name));
    this.make = literal(columns, this.texts);
  }

  reads(columns, raw) {
    return raw === this.raw && columns.length === this.columns.length
      && columns.every((name, at) => name === this.columns[at]);
  }

  /** The row of these values, without those at the positions that are `absent`. */
  row(values, absent) {
    if (values.length !== this.columns.length) {
      throw malformed(`${values.length} values for ${this.columns.length} columns`);
    }
    if (absent === null || absent.length === 0) return this.make(values);
    const row = {};
    this.columns.forEach((name, at) => {
      if (absent.includes(at)) return;
      const value = this.texts[at] ? rawValue(values[at], name) : values[at];
      // An assignment to `__proto__` would set no field.
      Object.defineProperty(row, name, { value, enumerable: true, configurable: true, writable: true });
    });
    return row;
  }
}

function rawValue(value, name) {
  if (value === null) return null;
  if (typeof value !== "string") throw malformed(`the raw column ${name} is no string; the host is too old`);
  return rawPart(value);
}

/**
 * A function from values to a row, written out for these columns: half the time of a loop, in an engine without a
 * compiler. The names are quoted, and in brackets because `__proto__` is no field otherwise.
 */
function literal(columns, texts) {
  const fields = columns.map((column, at) => {
    const name = JSON.stringify(column);
    const value = `values[${at}]`;
    return `${column === "__proto__" ? "[" + name + "]" : name}: ${texts[at] ? `rawValue(${value}, ${name})` : value}`;
  });
  return new Function("rawValue", `return (values) => ({ ${fields.join(", ")} });`)(rawValue);
}
