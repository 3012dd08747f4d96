/** Runs transforms natively: batches as the host sends them, and outcomes as it reads them. */
import { outcomes, run } from "./batch.js";
import { native } from "./host.js";
import { stringify } from "./json.js";
import * as plugins from "./plugin.js";

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
    const request = this.request();
    JSON.parse(run(this.#plugin, request)); // what the host would get is JSON
    return outcomes(this.#plugin, request).map((outcome) => new Outcome(outcome));
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
