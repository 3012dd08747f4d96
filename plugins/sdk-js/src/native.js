/**
 * The host's place in native runs (unit tests): what is written there is kept, and what is asked is answered as a test says.
 * `anabranch-sdk/testing` gives access. In a component there are the host's own functions instead: see "imports" in
 * package.json.
 */
import { Failure } from "./failure.js";
import { stringify } from "./json.js";

const fresh = () => ({
  lines: [],
  settings: new Map(),
  /** Answers `(sql, parameters)` with rows. */
  answer: null,
  /** Answers a request. */
  respond: null,
  state: new Map(),
  metrics: new Map(),
});

export const native = fresh();

/** As the beginning. */
export function forget() {
  Object.assign(native, fresh());
}

export function query(statements) {
  if (native.answer === null) {
    throw Failure.fatal("query-denied", "no question is answered here: say how with `setQuery` of anabranch-sdk/testing");
  }
  const sets = statements.flatMap(({ sql, parameters }) => parameters.map((set) => {
    const rows = native.answer(sql, set.map((text) => text ?? null));
    const columns = Object.keys(rows[0] ?? {});
    return [columns, rows.map((row) => columns.map((name) => row[name] ?? null))];
  }));
  return new TextEncoder().encode(stringify([1, sets]));
}

export const state = {
  get: (keys) => keys.map((key) => native.state.get(key)?.slice()),
  set: (key, value) => void native.state.set(key, value.slice()),
  delete: (key) => void native.state.delete(key),
  keys: (prefix, after, limit) => [...native.state.keys()]
    .filter((key) => key.startsWith(prefix) && (after === undefined || key > after))
    .sort()
    .slice(0, limit),
};

function series(name, labels) {
  const shown = labels.map((label) => `${label.name}=${JSON.stringify(label.value)}`);
  return shown.length === 0 ? name : `${name}{${shown.join(",")}}`;
}

export const metrics = {
  count: (name, labels, by) => {
    const key = series(name, labels);
    native.metrics.set(key, (native.metrics.get(key) ?? 0) + Number(by));
  },
  gauge: (name, labels, value) => void native.metrics.set(series(name, labels), value),
};

export function send(request) {
  if (native.respond === null) {
    throw Failure.fatal("http-denied", "no request is answered here: say how with `setHttp` of anabranch-sdk/testing");
  }
  const sent = Object.fromEntries(request.headers.map(([name, value]) => [name, new TextDecoder().decode(value)]));
  const { status = 200, headers = {}, body = "" } = native.respond({ ...request, headers: sent });
  const bytes = (value) => (typeof value === "string" ? new TextEncoder().encode(value) : value);
  const named = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), bytes(value)]);
  return { status, headers: named, body: bytes(body) };
}
