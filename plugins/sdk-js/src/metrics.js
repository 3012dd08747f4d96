/** Numbers of its own at the host's /metrics (`[plugins.<name>.grants] metrics = true`). Give labels few values. */
import { metrics as host } from "#metrics";

import { hostFailure, whole } from "./failure.js";

function attempt(call) {
  try {
    call();
  } catch (thrown) {
    throw hostFailure(thrown);
  }
}

const nameOf = (name) => whole("the name of a number", name);
const pairs = (labels) => Object.entries(labels).map(([name, value]) => ({
  name: whole("the name of a label", name),
  value: whole("the value of a label", value),
}));

export const metrics = Object.freeze({
  /** Adds to a counter, which is shown as `anabranch_guest_<name>_total`. */
  count(name, by = 1, labels = {}) {
    if (!Number.isSafeInteger(by) || by < 0) throw new TypeError(`a counter grows by whole numbers, not by ${by}`);
    attempt(() => host.count(nameOf(name), pairs(labels), BigInt(by)));
  },
  /** Sets a gauge, which is shown as `anabranch_guest_<name>`. */
  gauge(name, value, labels = {}) {
    if (typeof value !== "number") throw new TypeError(`a gauge is a number, not ${typeof value}`);
    attempt(() => host.gauge(nameOf(name), pairs(labels), value));
  },
});
