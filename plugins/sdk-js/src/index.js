/**
 * Write plugins for Anabranch in JavaScript or TypeScript.
 *
 * `transform` makes a plugin of a function that answers one change of a row, `sink` one of a class that delivers
 * documents; `anabranch plugin build` makes a component of the module that exports it as `plugin`. `anabranch-sdk/testing`
 * runs it natively, without one. What a plugin uses of `http`, `metrics`, `query` and `state` is what it asks to be granted.
 */
export { Failure } from "./failure.js";
export { config, log } from "./host.js";
export { http } from "./http.js";
export { RawJson, jsonNumber } from "./json.js";
export { metrics } from "./metrics.js";
export { Document, document, skip, transform } from "./plugin.js";
export { query, queryMany } from "./query.js";
export { sink } from "./sink.js";
export { state } from "./state.js";
