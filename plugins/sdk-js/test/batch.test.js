import assert from "node:assert/strict";
import { test } from "node:test";

import { Failure, config, document, log, skip, transform } from "../src/index.js";
import { outcomes as answers, reply, run } from "../src/batch.js";
import { change, describe, setConfig, table, takeLog } from "../src/testing.js";

const echo = transform({ columns: ["id", "note"], transform: ({ row }) => row });

test("answers become outcomes", () => {
  const plugin = transform({
    columns: ["note"],
    transform: ({ row: { note } }) => {
      if (note === "none") return null;
      if (note === "skip") return skip;
      if (note === "empty") return [];
      if (note === "two") return [document({ n: 1 }, { id: "a" }), document({ n: 2 }, { id: "b", destination: "d" })];
      return { note };
    },
  });
  const notes = ["x", "none", "skip", "empty", "two"];
  const outcomes = notes.reduce((batch, note, at) => batch.insert(String(at), { note }), table(plugin)).run();
  assert.deepEqual(outcomes.map(({ kind }) => kind), ["emit", "delete", "skip", "delete", "emit"]);
  assert.equal(outcomes[0].text, '{"note":"x"}');
  const named = outcomes[4].documents.map(({ id, destination, text }) => [id, destination, text]);
  assert.deepEqual(named, [["a", null, '{"n":1}'], ["b", "d", '{"n":2}']]);
});

test("what is thrown concerns its own change", () => {
  const plugin = transform({
    columns: ["note"],
    transform: ({ row: { note } }) => {
      if (note === "later") throw Failure.retry("busy", "try again");
      if (note === "bug") return note.missing.property;
      if (note === "text") throw "a text";
      if (note === "nothing") return undefined;
      if (note === "promise") return Promise.resolve(1);
      if (note === "array") return [1];
      if (note === "returned") return Failure.fatal("returned", "in place of thrown");
      return { ok: true };
    },
  });
  const notes = ["later", "bug", "text", "nothing", "promise", "array", "returned", "fine"];
  const outcomes = notes.reduce((batch, note) => batch.insert("1", { note }), table(plugin)).run();
  const failures = outcomes.map(({ failure }) => failure && [failure.class, failure.code]);
  assert.deepEqual(failures, [
    ["retry", "busy"], ["poison", "exception"], ["poison", "exception"], ["poison", "no-answer"],
    ["fatal", "async"], ["poison", "answer"], ["fatal", "returned"], null,
  ]);
  assert.match(outcomes[1].failure.message, /the transform threw TypeError: /);
});

test("NULL, the empty string and absent are three things", () => {
  const [outcome] = table(transform({ columns: ["a", "b", "c"], transform: ({ row }) => ({ row, keys: Object.keys(row) }) }))
    .insert("1", { a: null, b: "" })
    .run();
  assert.equal(outcome.text, '{"row":{"a":null,"b":""},"keys":["a","b"]}');
});

test("a delete has the old row, an update both", () => {
  const plugin = transform({ columns: ["id", "note"], wantsDeletes: true, transform: (change) => ({
    operation: change.operation, row: change.row, old: change.old,
  }) });
  const [update, gone] = table(plugin)
    .update("1", { id: 1, note: "new" }, { id: 1 })
    .delete("1", { id: 1, note: "new" })
    .run();
  assert.equal(update.text, '{"operation":"update","row":{"id":1,"note":"new"},"old":{"id":1}}');
  assert.equal(gone.text, '{"operation":"delete","row":{"id":1,"note":"new"},"old":{"id":1,"note":"new"}}');
});

test("a column may have any name", () => {
  const names = ["__proto__", "constructor", "toString", "a b", 'c"d'];
  const plugin = transform({ columns: names, transform: ({ row }) => Object.entries(row).map(([name]) => document(name)) });
  const row = Object.fromEntries(names.map((name) => [name, 1]));
  const [outcome] = table(plugin).insert("1", row).run();
  assert.deepEqual(outcome.documents.map(({ body }) => body), names);
});

test("a batch that does not fit fails as a whole", () => {
  const failure = (request, code) =>
    assert.throws(() => run(echo, request), (error) => error instanceof Failure && error.class === "fatal" && error.code === code);
  failure("{", "batch");
  failure("{}", "payload-version");
  failure('{"v":2,"relation":{"columns":[],"types":[]},"changes":[]}', "payload-version");
  failure('{"v":1,"relation":{"columns":["id"],"types":["text"]},"changes":[]}', "columns");
  failure('{"v":1,"relation":{"columns":["id","note"],"types":["text","text"]}}', "batch");
  failure('{"v":1,"relation":{"columns":["id","note"],"types":["text","text"]},"changes":[["insert","1",[1],null]]}', "batch");
});

test("a host that does not know raw columns is told", () => {
  const plugin = transform({ columns: ["data"], raw: ["data"], transform: ({ row }) => row });
  const request = '{"v":1,"relation":{"columns":["data"],"types":["json"]},"changes":[["insert","1",[{"a":1}],null]]}';
  assert.throws(() => run(plugin, request), (error) => error.class === "fatal" && /the host is too old/.test(error.message));
});

test("settings and log lines can be looked at", () => {
  const plugin = transform({ columns: [], transform: () => {
    log.warn(`currency ${config.get("currency")}`);
    return { missing: config.get("nothing") === undefined };
  } });
  setConfig({ currency: "EUR" });
  takeLog();
  assert.deepEqual(plugin.transform(change({})), { missing: true });
  assert.deepEqual(takeLog(), [{ level: "warn", message: "currency EUR" }]);
});

test("describe says what was declared", () => {
  const plugin = transform({ tables: ["public.a"], columns: ["b"], destination: "c", transform: () => null });
  assert.deepEqual(describe(plugin), {
    name: "test", version: "0.0.0", kind: "transform", encoding: "json", tables: ["public.a"], columns: ["b"],
    raw: [], destination: "c", wants_deletes: false, names_ids: false, depends_on: [], sdk: "anabranch-sdk-js 0.1.0",
  });
  assert.equal(describe(transform({ transform: () => null })).columns, null);
});

test("options that are not known or do not fit are refused", () => {
  const refused = (options, words) => assert.throws(() => transform(options), words);
  refused({ transfrom: () => null }, /`transfrom` is no option/);
  refused({}, /`transform` is a function/);
  refused({ tables: "public.a", transform: () => null }, /`tables` is an array/);
  refused({ columns: ["a"], raw: ["b"], transform: () => null }, /`raw` names `b`/);
  assert.throws(() => document({}, { di: "x" }), /a document has no `di`/);
  assert.throws(() => document({}, { id: 7 }), /is a string, not number/);
});

test("a failure in half a character is still that failure", () => {
  const plugin = transform({ columns: ["id"], transform() {
    throw Failure.retry("bu\udcff", "a text \udcff, a pair \ud83d\ude00");
  } });
  const reply = run(plugin, JSON.stringify({
    v: 1, relation: { columns: ["id"], types: ["integer"] }, origin: "stream",
    changes: [["insert", "1", [1], null, "0/1", 0, 0, null]],
  }));
  const failed = { class: "retry", code: "bu\ufffd", message: "a text \ufffd, a pair \u{1f600}" };
  assert.equal(reply, JSON.stringify([{ failed }]));
});

test("a component answers as the native harness does", () => {
  const odd = [
    { a: 1 }, null, skip, undefined, [], [document({ n: 1 }, { id: "a" })], document(1), "text", 7, { then: 1 }, { then: () => 1 },
    { toJSON: () => "own" }, { constructor: 1 }, JSON.parse('{"__proto__": {"a": 1}}'), { big: 2n ** 70n }, { big: undefined },
    Object.create(null), new Date(0), Failure.retry("busy", "later"), { deep: [{ and: new Date(0) }] },
  ];
  let prepared = 0;
  const plugin = transform({
    columns: ["id"],
    prepare: (changes) => void (prepared += changes.length),
    transform: ({ row }) => odd[row.id],
  });
  const text = odd.reduce((batch, _, id) => batch.insert(String(id), { id }), table(plugin)).request();
  assert.equal(run(plugin, text), reply(answers(plugin, text)));
  assert.equal(prepared, 2 * odd.length);
});
