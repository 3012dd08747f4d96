/** The exports of a transform's component. `anabranch plugin build` writes the module that calls this. */
import { run } from "./batch.js";
import { failureOf, told } from "./failure.js";
import { bind, log } from "./host.js";
import { describe } from "./plugin.js";

/** Binds the host's interfaces, and gives the export `describe`. */
export function described(plugin, project, host) {
  bind(host);
  // What a library prints belongs into the host's log.
  const print = (write) => (...words) => write(words.map(String).join(" "));
  globalThis.console = Object.assign(globalThis.console ?? {}, {
    error: print(log.error), warn: print(log.warn), info: print(log.info), log: print(log.info),
    debug: print(log.debug), trace: print(log.trace),
  });
  const description = describe(plugin, project);
  return { describe: () => description };
}

/** Calls a function for the host: what it throws is the failure of the whole call. */
export function answering(call) {
  try {
    return call();
  } catch (thrown) {
    // Not an Error: that would be a trap.
    throw told(failureOf(thrown));
  }
}

/** Exports of a transform, for its project's names and the host's interfaces. */
export function component(plugin, project, host) {
  const [decoder, encoder] = [new TextDecoder(), new TextEncoder()];
  return {
    describe: described(plugin, project, host),
    transform: {
      transform: (batch) => answering(() => encoder.encode(run(plugin, decoder.decode(batch)))),
    },
  };
}
