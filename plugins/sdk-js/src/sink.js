/** Sinks: how one is defined, what comes to it, and what it answers. */
import { Failure, done, sinkFailure } from "./failure.js";
import { decode, encode } from "./msgpack.js";
import { check, typed } from "./plugin.js";

const TYPES = ["string", "number", "boolean", "array", "object"];
/** The methods of a sink that builds a destination beside what its readers see. */
const GENERATIONS = ["begin", "switch", "abandon"];

/** Defines a sink: a class that is made with its settings, delivers, and may purge and build beside. See `index.d.ts`. */
export function sink(type, options = {}) {
  check(options, ["name", "version", "settings"], "a sink");
  if (typeof type !== "function" || typeof type.prototype?.deliver !== "function") {
    throw new TypeError("a sink is a class with a method `deliver(batch)`");
  }
  const { purge } = type.prototype;
  if (purge !== undefined && typeof purge !== "function") throw new TypeError("`purge` is a method");
  return Object.freeze({
    kind: "sink",
    name: typed(options, "name", "string"),
    version: typed(options, "version", "string"),
    settings: declared(options.settings),
    purges: purge !== undefined,
    hasGenerations: hasGenerations(type.prototype),
    type,
  });
}

function hasGenerations(methods) {
  const missing = GENERATIONS.filter((name) => typeof methods[name] !== "function").map((name) => `\`${name}\``);
  if (missing.length > 0 && GENERATIONS.some((name) => methods[name] !== undefined)) {
    throw new TypeError("a sink that builds beside what readers see has methods `begin`, `switch` and `abandon`, all three of "
      + `them: ${missing.join(" and ")} ${missing.length > 1 ? "are" : "is"} missing`);
  }
  return missing.length === 0;
}

function declared(settings) {
  if (settings === undefined) return null;
  return Object.entries(settings).map(([name, word]) => {
    const optional = String(word).endsWith("?");
    const type = optional ? word.slice(0, -1) : word;
    if (!TYPES.includes(type)) {
      throw new TypeError(`the setting \`${name}\` is of a type: ${TYPES.join(", ")}, with a \`?\` where it may be missing`);
    }
    return { name, type, optional };
  });
}

function typeOf(value) {
  return Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
}

/** The settings as they were declared. Errors have no values: one may be a secret. */
function settingsOf(fields, config) {
  const wrong = (problem) => Failure.fatal("settings", `\`config\` of the sink: ${problem}`);
  const given = JSON.parse(config);
  if (fields === null) return given;
  const names = fields.map(({ name }) => `\`${name}\``).join(", ");
  const stranger = Object.keys(given).find((name) => !fields.some((field) => field.name === name));
  if (stranger !== undefined) throw wrong(`unknown field \`${stranger}\`, expected ${names || "none"}`);
  for (const { name, type, optional } of fields) {
    const value = given[name];
    if (value === undefined && optional) continue;
    if (value === undefined) throw wrong(`missing field \`${name}\``);
    if (typeOf(value) !== type) throw wrong(`\`${name}\` has the wrong type: expected ${type}`);
  }
  return given;
}

/** Documents of one mapping, in commit order. Several may have the same id: the last one wins. */
class Batch {
  constructor({ entity, origin, generation, place, documents }) {
    this.entity = entity;
    this.origin = origin;
    this.generation = generation;
    this.place = place ?? null;
    this.documents = documents;
  }

  /** Every document was accepted. */
  accepted() {
    return this.documents.map(() => null);
  }

  /**
   * One result for each document, in order, by a function that returns where it is accepted and throws where it is not. Behind
   * a failure that is not poison nothing more is tried: the batch comes again.
   */
  each(deliver) {
    const results = [];
    for (const document of this.documents) {
      let result = null;
      try {
        done(deliver(document), "the sink");
      } catch (thrown) {
        result = sinkFailure(thrown);
      }
      results.push(result);
      if (result !== null && result.class !== "poison") {
        while (results.length < this.documents.length) results.push(result);
        break;
      }
    }
    return results;
  }
}

const malformed = (problem) => Failure.fatal("batch", `the batch is malformed: ${problem}`);

/** As Postgres writes it. */
function position(lsn) {
  const whole = BigInt(lsn);
  return `${(whole >> 32n).toString(16)}/${(whole & 0xffffffffn).toString(16)}`.toUpperCase();
}

const decoder = new TextDecoder();

function read(bytes) {
  let request;
  try {
    request = decode(bytes);
    if (request.v === 1) request.documents = request.documents.map((elements) => documentOf(elements, request));
  } catch (error) {
    if (error instanceof Failure) throw error;
    throw malformed(error.message);
  }
  if (request.v !== 1) {
    throw Failure.fatal("payload-version", `this plugin reads payload version 1, the host sent ${request.v}`);
  }
  return new Batch(request);
}

function documentOf([operation, id, index, body, lsn, commitTimeUs], { destinations }) {
  const destination = destinations[index];
  if (destination === undefined) throw malformed("a document names a destination that is not there");
  if (operation !== "upsert" && operation !== "delete") {
    throw Failure.fatal("operation", `operation \`${operation}\` is not known`);
  }
  if ((body === null) !== (operation === "delete")) throw malformed("an upsert has a body, a delete has none");
  return { destination, id, body: body && decoder.decode(body), lsn: position(lsn), commitTimeUs };
}

function written(results, count) {
  if (!Array.isArray(results) || results.length !== count) {
    const answered = Array.isArray(results) ? `${results.length} results` : "no array of results";
    throw Failure.fatal("results", `\`deliver\` returned ${answered} for ${count} documents: one for each, in order`);
  }
  return encode(results.map((result) => {
    if (result === null || result === undefined) return [0];
    if (!(result instanceof Failure)) throw Failure.fatal("results", "a result is null (accepted) or a Failure");
    const { class: failureClass, code, message, afterMs } = result;
    return afterMs === undefined ? [1, failureClass, code, message] : [1, failureClass, code, message, afterMs];
  }));
}

/** A sink at work: what the interfaces `sink`, `purge` and `generations` do, with Failures thrown. */
export class Instance {
  #plugin;
  #sink;

  constructor(plugin) {
    this.#plugin = plugin;
  }

  open(config) {
    const settings = settingsOf(this.#plugin.settings, config);
    try {
      this.#sink = new this.#plugin.type(settings);
    } catch (thrown) {
      // Settings come to the same each time.
      throw sinkFailure(thrown, "fatal");
    }
    this.#refuseFields();
  }

  /** What is exported stands in the class: a field of the instance came too late, and would never be called. */
  #refuseFields() {
    const exported = this.#plugin.type.prototype;
    const field = ["purge", ...GENERATIONS].find((name) => this.#sink[name] !== undefined && exported[name] === undefined);
    if (field !== undefined) {
      throw Failure.fatal("methods", `\`${field}\` is a field of the sink; write a method: \`${field}(…) { … }\``);
    }
  }

  deliver(bytes) {
    const batch = read(bytes);
    try {
      return written(done(this.#opened().deliver(batch), "the sink"), batch.documents.length);
    } catch (thrown) {
      throw sinkFailure(thrown);
    }
  }

  purge(destination) {
    this.#called((sink) => sink.purge(destination));
  }

  begin(destination, place) {
    const seen = this.#called((sink) => sink.begin(destination, place));
    // Where readers see nothing they are switched at once: nobody is to say so by a forgotten `return`.
    if (typeof seen !== "boolean") {
      throw Failure.fatal("results", `\`begin\` returned ${typeOf(seen)}: true where readers see anything under the destination, else false`);
    }
    return seen;
  }

  switch(destination, place) {
    this.#called((sink) => sink.switch(destination, place));
  }

  abandon(destination, place) {
    this.#called((sink) => sink.abandon(destination, place));
  }

  #called(call) {
    try {
      return done(call(this.#opened()), "the sink");
    } catch (thrown) {
      throw sinkFailure(thrown);
    }
  }

  #opened() {
    if (this.#sink === undefined) throw Failure.fatal("not-open", "the sink was not opened");
    return this.#sink;
  }
}
