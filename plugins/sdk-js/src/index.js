/**
 * Write transforms for Anabranch in JavaScript or TypeScript.
 *
 * `transform` makes a plugin of a function that answers one change of a row; `anabranch plugin build` makes a
 * component of the module that exports it as `plugin`. `anabranch-sdk/testing` runs it natively, without one.
 */
export { Failure } from "./failure.js";
export { config, log } from "./host.js";
export { RawJson, jsonNumber } from "./json.js";
export { Document, document, skip, transform } from "./plugin.js";
