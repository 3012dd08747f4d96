/** The exports of a component. `anabranch plugin build` writes the module that calls this. */
import { run } from "./batch.js";
import { Failure, failureOf } from "./failure.js";
import { bind, log } from "./host.js";
import { describe } from "./plugin.js";

/** Exports of the world `transform-plugin` for a plugin, its project's names, and the host's interfaces. */
export function component(plugin, project, host) {
  if (typeof plugin?.transform !== "function") {
    throw new TypeError("the module exports no `plugin`; write `export const plugin = transform({ … })`");
  }
  bind(host);
  // What a library prints belongs into the host's log.
  const print = (write) => (...words) => write(words.map(String).join(" "));
  globalThis.console = Object.assign(globalThis.console ?? {}, {
    error: print(log.error), warn: print(log.warn), info: print(log.info), log: print(log.info),
    debug: print(log.debug), trace: print(log.trace),
  });
  const description = describe(plugin, project);
  const [decoder, encoder] = [new TextDecoder(), new TextEncoder()];
  return {
    describe: { describe: () => description },
    transform: {
      transform(batch) {
        try {
          return encoder.encode(run(plugin, decoder.decode(batch)));
        } catch (thrown) {
          const failure = thrown instanceof Failure ? thrown : failureOf(thrown);
          // Not an Error: that would be a trap.
          throw { class: failure.class, code: failure.code, message: failure.message };
        }
      },
    },
  };
}
