/**
 * What the host offers: a log, and the mapping's settings. Natively (in unit tests) log lines are recorded and
 * settings are those of `setConfig`; a component binds the host's own.
 */

import { native } from "./native.js";

let host = {
  log: (level, message) => native.lines.push({ level, message }),
  get: (key) => native.settings.get(key),
};

/** Makes the host's interfaces those of this module. A component does it before its first call. */
export function bind(interfaces) {
  host = { log: interfaces.log.log, get: interfaces.config.get };
}

const line = (level) => (message) => host.log(level, String(message));

/** Writes lines to the host's log, which limits their rate and length. */
export const log = Object.freeze({
  error: line("error"),
  warn: line("warn"),
  info: line("info"),
  debug: line("debug"),
  trace: line("trace"),
});

/** The mapping's settings. */
export const config = Object.freeze({
  /** The text under a key, or undefined. Not at the top of a module: that runs once, when it is built. */
  get: (key) => host.get(key) ?? undefined,
});
