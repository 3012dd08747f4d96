/** The exports of a sink's component. `anabranch plugin build` writes the module that calls this. */
import { answering, described } from "./component.js";
import { Instance } from "./sink.js";

/**
 * Exports of a sink, for its project's names and the host's interfaces; `purge` and `generations` are exported where the sink has
 * their methods.
 */
export function component(plugin, project, host) {
  const sink = new Instance(plugin);
  return {
    describe: described(plugin, project, host),
    sink: {
      open: (config) => answering(() => sink.open(config)),
      deliver: (batch) => answering(() => sink.deliver(batch)),
    },
    purge: { purge: (destination) => answering(() => sink.purge(destination)) },
    generations: {
      begin: (destination, place) => answering(() => sink.begin(destination, place)),
      switch: (destination, place) => answering(() => sink.switch(destination, place)),
      abandon: (destination, place) => answering(() => sink.abandon(destination, place)),
    },
  };
}
