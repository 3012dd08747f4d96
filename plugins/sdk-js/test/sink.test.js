import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Failure, sink } from "../src/index.js";
import { decode, encode } from "../src/msgpack.js";
import { Instance } from "../src/sink.js";
import { describe, open } from "../src/testing.js";

class Keeping {
  kept = new Map();

  constructor(settings) {
    if (settings.room === 0) throw Failure.fatal("room", "there is none");
    if (settings.room < 0) throw new RangeError("less than none");
    this.settings = settings;
  }

  deliver(batch) {
    this.batch = batch;
    return batch.each(({ id, body }) => {
      if (id === "busy") throw Failure.retry("busy", "later", { afterMs: 1500 });
      if (id === "bug") return undefined.missing;
      if (body?.includes("bad")) throw Failure.poison("bad", "never");
      this.kept.set(id, body);
    });
  }

  purge(destination) {
    if (destination !== "all") throw Failure.fatal("unknown", destination);
    this.kept.clear();
  }
}

const plugin = sink(Keeping, { settings: { room: "number", key: "string?" } });
const failure = (call) => {
  try {
    call();
  } catch (error) {
    assert.ok(error instanceof Failure, error.stack);
    return error;
  }
  assert.fail("it did not fail");
};

test("there is one result for each document", () => {
  const opened = open(plugin, { room: 3 });
  const results = opened.deliver([
    { id: "1", body: '{"a": 1.50}' }, { id: "2", body: "bad" }, { id: "3", destination: "d" },
  ]);
  assert.deepEqual(results.map((result) => result && [result.class, result.code]), [null, ["poison", "bad"], null]);
});

test("what nobody classified is tried again, and gives up no document", () => {
  const results = open(plugin, { room: 3 }).deliver([{ id: "1" }, { id: "bug", body: {} }, { id: "2", body: "bad" }]);
  assert.deepEqual(results.map((result) => result && [result.class, result.code]), [
    null, ["retry", "exception"], ["retry", "exception"],
  ]);
  assert.match(results[1].message, /the sink threw TypeError/);
});

test("nothing is tried behind what is to be tried again", () => {
  const results = open(plugin, { room: 3 }).deliver([{ id: "1" }, { id: "busy" }, { id: "2", body: "bad" }]);
  assert.deepEqual(results.map((result) => result && [result.class, result.afterMs]), [null, ["retry", 1500], ["retry", 1500]]);
});

test("destinations are emptied where the sink can", () => {
  const opened = open(plugin, { room: 3 });
  opened.purge("all");
  assert.equal(failure(() => opened.purge("other")).code, "unknown");
  assert.deepEqual([plugin.purges, sink(class { deliver() {} }).purges], [true, false]);
});

class Shown extends Keeping {
  places = new Map();

  begin(destination, place) {
    if (destination === "forgotten") return;
    if (destination === "later") return Promise.resolve(true);
    this.places.set(place, new Map());
    return this.kept.size > 0;
  }

  deliver(batch) {
    if (batch.place === null) return super.deliver(batch);
    const kept = this.places.get(batch.place);
    if (kept === undefined) throw Failure.fatal("place-gone", `there is no ${batch.place}`);
    return batch.each(({ id, body }) => void kept.set(id, body));
  }

  switch(destination, place) {
    if (!this.places.has(place)) throw Failure.fatal("place-gone", `there is no ${place}`);
    this.kept = this.places.get(place);
  }

  abandon(destination, place) {
    if (place === "bug") undefined.missing;
    this.places.delete(place);
  }
}

test("a destination is built beside what readers see", () => {
  const kept = [];
  const shown = sink(class extends Shown {
    switch(destination, place) {
      super.switch(destination, place);
      kept.push(...this.kept.keys());
    }
  }, { settings: { room: "number" } });
  assert.equal(shown.hasGenerations, true);
  const opened = open(shown, { room: 3 });
  assert.equal(opened.begin("all", "1-a"), false);
  opened.deliver([{ id: "1" }], { place: "1-a" });
  opened.switch("all", "1-a");
  assert.equal(opened.begin("all", "2-b"), true);
  assert.deepEqual(opened.deliver([{ id: "2", body: {} }], { place: "2-b" }), [null]);
  assert.deepEqual(opened.deliver([{ id: "3", body: {} }]), [null]);
  opened.switch("all", "2-b");
  assert.deepEqual(kept, ["1", "2"]);
  opened.abandon("all", "2-c");
  assert.equal(failure(() => opened.deliver([{ id: "2" }], { place: "2-c" })).code, "place-gone");
  assert.equal(failure(() => opened.switch("all", "2-c")).class, "fatal");
  assert.deepEqual([failure(() => opened.abandon("all", "bug"))].map(({ class: failureClass, code }) => [failureClass, code]), [
    ["retry", "exception"],
  ]);
  // Readers would be switched at once.
  const said = failure(() => opened.begin("forgotten", "3-d"));
  assert.deepEqual([said.class, said.code], ["fatal", "results"]);
  assert.match(said.message, /^`begin` returned undefined: true where readers see anything/);
  assert.equal(failure(() => opened.begin("later", "3-d")).code, "async");
  assert.equal(failure(() => new Instance(shown).begin("all", "3-d")).code, "not-open");
});

test("a part of what builds beside is refused", () => {
  const withMethods = (methods) => {
    const partly = class { deliver() {} };
    Object.assign(partly.prototype, methods);
    return partly;
  };
  const partly = (methods) => () => sink(withMethods(methods));
  assert.equal(sink(withMethods({})).hasGenerations, false);
  assert.throws(partly({ begin() {}, switch() {} }), /has methods `begin`, `switch` and `abandon`, all three of them: `abandon` is missing$/);
  assert.throws(partly({ abandon() {} }), /: `begin` and `switch` are missing$/);
  assert.throws(partly({ begin: 1, switch() {}, abandon() {} }), /: `begin` is missing$/);
});

const golden = (name) => {
  const hex = readFileSync(new URL(`../../../tests/golden/payload/${name}.msgpack.hex`, import.meta.url), "utf8");
  return new Uint8Array(Buffer.from(hex.replaceAll(/\s/g, ""), "hex"));
};

test("the golden batch is read", () => {
  const bytes = golden("deliver");
  let seen;
  const instance = new Instance(sink(class {
    deliver(batch) {
      seen = batch;
      return batch.accepted();
    }
  }));
  assert.equal(failure(() => instance.deliver(bytes)).code, "not-open");
  instance.open("{}");
  assert.deepEqual(instance.deliver(bytes), Uint8Array.from([0x93, 0x91, 0, 0x91, 0, 0x91, 0]));
  assert.deepEqual([seen.entity, seen.origin, seen.generation, seen.place], ["public.products", "stream", 3, null]);
  assert.deepEqual(seen.documents.map(({ destination, id, body, lsn }) => [destination, id, body, lsn]), [
    ["products", "7", '{"a": 1.50,\n "b": "\\ud800"}', "16/B374D848"],
    ["products", '8 "Uno"', null, "FFFFFFFF/FFFFFFFF"],
    ["all", "é", "null", "0/0"],
  ]);
  instance.deliver(golden("deliver-place"));
  assert.deepEqual([seen.place, seen.documents.length], ["3-5f2c81d0", 2]);
  for (let cut = 0; cut < bytes.length; cut++) {
    assert.equal(failure(() => instance.deliver(bytes.subarray(0, cut))).code, "batch", `cut at ${cut}`);
  }
});

test("what the sink answers wrongly fails the batch", () => {
  for (const [answered, code] of [[undefined, "results"], [[], "results"], [[1], "results"], [Promise.resolve([null]), "async"]]) {
    const opened = open(sink(class { deliver() { return answered; } }));
    assert.equal(failure(() => opened.deliver([{ id: "1" }])).code, code);
  }
  const later = open(sink(class { deliver(batch) { return batch.each(async () => {}); } }));
  assert.deepEqual(later.deliver([{ id: "1" }]).map(({ class: failureClass, code }) => [failureClass, code]), [["fatal", "async"]]);
  const broken = open(sink(class { deliver() { throw new TypeError("x"); } }));
  assert.deepEqual([failure(() => broken.deliver([])).class, failure(() => broken.deliver([])).code], ["retry", "exception"]);
  const stuck = open(sink(class { deliver() {} purge() { throw new TypeError("x"); } }));
  assert.deepEqual([failure(() => stuck.purge("d")).class, failure(() => stuck.purge("d")).code], ["retry", "exception"]);
});

test("c096: wrong settings are told without their values", () => {
  const said = (settings) => failure(() => open(plugin, settings)).message;
  assert.equal(said({}), "`config` of the sink: missing field `room`");
  assert.match(said({ room: 1, key: "k", kye: "marker" }), /unknown field `kye`, expected `room`, `key`$/);
  assert.match(said({ room: "marker" }), /^`config` of the sink: `room` has the wrong type: expected number$/);
  assert.equal(said({ room: 0 }), "there is none");
  assert.equal(failure(() => open(plugin, { room: -1 })).class, "fatal");
  open(sink(class { deliver() {} }), { anything: 1 });
});

test("describe says what a sink is", () => {
  assert.deepEqual(describe(plugin), {
    name: "test", version: "0.0.0", kind: "sink", encoding: "msgpack", sdk: "anabranch-sdk-js 0.1.0",
  });
});

test("what is no sink is refused", () => {
  assert.throws(() => sink({}), /a class with a method `deliver/);
  assert.throws(() => sink(class {}), /a class with a method `deliver/);
  assert.throws(() => sink(Keeping, { setings: {} }), /`setings` is no option of a sink/);
  assert.throws(() => sink(Keeping, { settings: { room: "int" } }), /`room` is of a type/);
});

test("MessagePack comes back as it was", () => {
  const long = "x".repeat(70_000);
  for (const value of [
    null, true, false, 0, 127, 128, 65_536, -1, -33, 2 ** 52, -(2 ** 52), 2n ** 63n, "", "ß", long, new Uint8Array(300), [],
    Array(20).fill(1), Array(70_000).fill(null), { a: [{ b: 1 }] }, Object.fromEntries(Array.from({ length: 20 }, (_, at) => [`k${at}`, at])),
  ]) {
    assert.deepEqual(decode(encode(value)), value);
  }
});

test("what is returned in place of thrown is no success", () => {
  const busy = () => Failure.retry("busy", "the service says 503");
  const each = (put) => open(sink(class { deliver(batch) { return batch.each(put); } })).deliver([{ id: "1" }, { id: "2" }]);
  assert.deepEqual(each(busy).map(({ code }) => code), ["busy", "busy"]);
  assert.deepEqual(each(async () => {}).map((said) => [said.class, said.code]), [["fatal", "async"], ["fatal", "async"]]);
  assert.deepEqual(each((document) => document.id), [null, null], "other values say nothing");
  const all = open(sink(class { deliver() { return busy(); } purge() { return busy(); } begin() { return busy(); } switch() {
    return busy();
  } abandon() { return busy(); } }));
  const calls = [() => all.deliver([{ id: "1" }]), () => all.purge("all"), () => all.begin("all", "1"),
    () => all.switch("all", "1"), () => all.abandon("all", "1")];
  assert.deepEqual(calls.map((call) => failure(call).code), calls.map(() => "busy"));
});

test("a field in place of a method is refused", () => {
  for (const name of ["purge", "begin", "switch", "abandon"]) {
    const said = failure(() => open(sink(class {
      constructor() { this[name] = () => true; }
      deliver(batch) { return batch.accepted(); }
    })));
    assert.deepEqual([said.class, said.code], ["fatal", "methods"]);
    assert.ok(said.message.includes(`\`${name}\` is a field of the sink`), said.message);
  }
});
