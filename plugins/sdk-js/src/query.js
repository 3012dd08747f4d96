/** Questions to the source, to enrich documents (`[plugins.<name>.grants] query = true`). */
import { query as ask } from "#query";

import { Failure, hostFailure, whole } from "./failure.js";
import { lostDigits, parseExactly } from "./json.js";

const decoder = new TextDecoder();

/** As Postgres reads it; undefined is NULL at the border. */
function text(value) {
  if (value === null) return undefined;
  if (typeof value === "string") return whole("a parameter of a question", value);
  if (typeof value === "number" || typeof value === "bigint" || typeof value === "boolean") return String(value);
  throw new TypeError(`a parameter is a string, number, bigint, boolean or null, not ${typeof value}`);
}

function texts(parameters) {
  if (!Array.isArray(parameters)) throw new TypeError("the parameters of a statement are an array");
  return parameters.map(text);
}

/** The rows of one statement, as objects. */
export function query(sql, parameters = []) {
  return queryMany([{ sql, parameters: [parameters] }])[0];
}

/** The rows of several statements, each with several sets of parameters, from one snapshot. */
export function queryMany(statements) {
  const asked = statements.map(({ sql, parameters = [[]] }) => ({
    sql: whole("the SQL of a question", sql),
    parameters: parameters.map(texts),
  }));
  let bytes;
  try {
    bytes = ask(asked);
  } catch (thrown) {
    throw hostFailure(thrown);
  }
  return read(decoder.decode(bytes));
}

function read(answer) {
  let [version, sets] = JSON.parse(answer);
  if (version !== 1) {
    throw Failure.fatal("payload-version", `this plugin reads answers of version 1, the host sent ${version}`);
  }
  if (sets.some(([, rows]) => rows.some((row) => row.some(lostDigits)))) [, sets] = parseExactly(answer);
  return sets.map(([columns, rows]) =>
    rows.map((values) => Object.fromEntries(columns.map((name, at) => [name, values[at]]))));
}
