/**
 * A small store of keys and values, of each mapping and generation alone (`[plugins.<name>.grants] state = true`).
 *
 * What a call writes is durable before its documents are delivered, and lost if the call fails. A batch that is sent again
 * may meet its own earlier writes, so write what is the same when it is written twice.
 */
import { state as host } from "#state";

import { Failure, hostFailure, whole } from "./failure.js";

const [decoder, encoder] = [new TextDecoder("utf-8", { fatal: true }), new TextEncoder()];
const LIMIT = 1000;

function attempt(call) {
  try {
    return call();
  } catch (thrown) {
    throw hostFailure(thrown);
  }
}

function bytesOf(value) {
  if (typeof value === "string") return encoder.encode(value);
  if (value instanceof Uint8Array) return value;
  throw new TypeError(`a value of the store is a string or a Uint8Array, not ${typeof value}`);
}

function textOf(bytes, key) {
  try {
    return decoder.decode(bytes);
  } catch {
    throw Failure.poison("state-text", `the value under \`${key}\` is no text: \`state.getBytes\` reads it`);
  }
}

const keyOf = (key) => whole("a key of the store", key);

export const state = Object.freeze({
  /** The text under a key, or undefined. */
  get(key) {
    const bytes = state.getBytes(key);
    return bytes === undefined ? undefined : textOf(bytes, key);
  },
  /** The bytes under a key, or undefined. */
  getBytes: (key) => attempt(() => host.get([keyOf(key)]))[0] ?? undefined,
  /** The texts under some keys, in their order, read in one go. */
  getMany(keys) {
    const names = keys.map(keyOf);
    return attempt(() => host.get(names)).map((bytes, at) => (bytes ? textOf(bytes, names[at]) : undefined));
  },
  /** Puts a string, or a Uint8Array, under a key. */
  set: (key, value) => attempt(() => host.set(keyOf(key), bytesOf(value))),
  /** Removes a key, whether it is there or not. */
  delete: (key) => attempt(() => host.delete(keyOf(key))),
  /** The keys that begin with a prefix, after a key, in the order of their bytes; so many at the most. */
  keys: ({ prefix = "", after, limit = LIMIT } = {}) =>
    attempt(() => host.keys(keyOf(prefix), after === undefined ? undefined : keyOf(after), limit)),
});
