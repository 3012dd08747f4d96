import assert from "node:assert/strict";
import { test } from "node:test";

import { RawJson, jsonNumber, transform } from "../src/index.js";
import { run } from "../src/batch.js";
import { parseExactly, readExactly, stringify } from "../src/json.js";

/** A batch of one row, its values as JSON text. */
function batch(columns, types, values, white = "") {
  const relation = JSON.stringify({ columns, types });
  const row = values.join(`,${white}`);
  return `{"v":1,${white}"relation":${relation},"origin":"stream","changes":${white}[["insert","1",${white}[${row}${white}],null,"0/1",0,0,null,{}]]}`;
}

const whole = (options) => transform({ ...options, transform: ({ row }) => row });

test("a raw column passes byte for byte", () => {
  const plugin = whole({ columns: ["a", "json", "b"], raw: ["json"] });
  const texts = [
    "1e400", "123456789012345678901234567890", '"\\ud800 \\u00e9 \\" \\\\"', '{"a":1,"a":2,\n "b": [1.50, {}]}', "[]",
    '"]"', '{"a\\"]":"}"}', "true", '"x\\\\"',
  ];
  for (const text of texts) {
    for (const white of ["", " ", "\n\t"]) {
      const reply = run(plugin, batch(plugin.columns, ["text", "json", "integer"], ['"x,]"', JSON.stringify(text), "7"], white));
      assert.equal(reply, `[{"emit":[{"document":{"a":"x,]","json":${text},"b":7}}]}]`);
    }
  }
});

test("NULL in a raw column is null", () => {
  const plugin = whole({ columns: ["json"], raw: ["json"] });
  assert.equal(run(plugin, batch(["json"], ["json"], ["null"])), '[{"emit":[{"document":{"json":null}}]}]');
});

test("raw columns of several rows, new and old, do not get mixed up", () => {
  const plugin = transform({ columns: ["a", "b"], raw: ["a", "b"], transform: ({ row, old }) => ({ row, old }) });
  const request = '{"v":1,"relation":{"columns":["a","b"],"types":["json","json"]},"origin":"stream","changes":['
    + '["update","1",["1.0",null],["2.0","[3.0]"],"0/1",0,0,null,{}],["insert","2",["null","4.0"],null,"0/1",0,1,null,{}]]}';
  assert.equal(run(plugin, request), '[{"emit":[{"document":{"row":{"a":1.0,"b":null},"old":{"a":2.0,"b":[3.0]}}}]},'
    + '{"emit":[{"document":{"row":{"a":null,"b":4.0},"old":null}}]}]');
});

test("no integer loses digits", () => {
  const seen = [];
  const plugin = transform({ columns: ["a", "b", "c", "d"], raw: ["c"], transform: ({ row }) => (seen.push(row), row) });
  const values = ["9007199254740993", "-9223372036854775808", "\"1.10\"", "[9007199254740993,[null,1,1e+300,\"x\"]]"];
  const reply = run(plugin, batch(plugin.columns, ["integer", "integer", "json", "array"], values));
  assert.equal(seen[0].a, 9007199254740993n);
  assert.deepEqual(seen[0].d, [9007199254740993n, [null, 1, 1e300, "x"]]);
  assert.equal(reply, '[{"emit":[{"document":{"a":9007199254740993,"b":-9223372036854775808,"c":1.10,'
    + '"d":[9007199254740993,[null,1,1e+300,"x"]]}}]}]');
  run(plugin, batch(plugin.columns, ["integer", "integer", "json", "array"], ["7", "8", "\"9\"", "[]"]));
  assert.equal(seen[1].a, 7, "a number where a number does");
});

test("documents keep raw texts, also where a row imitates how", () => {
  const raw = new RawJson(" 1.50 ");
  assert.equal(stringify({ a: raw, b: [raw, "\uFDD0raw\uFDD0"], c: raw }), '{"a":1.50,"b":[1.50,"\uFDD0raw\uFDD0"],"c":1.50}');
  assert.equal(stringify(raw), "1.50");
  assert.equal(stringify({ inner: { toJSON: () => JSON.stringify({ raw }) }, raw }), '{"inner":"{\\"raw\\":1.5}","raw":1.50}');
  assert.equal(JSON.stringify({ raw }), '{"raw":1.5}', "elsewhere it is what it means");
});

test("documents are what JSON.stringify writes, also in the slow way", () => {
  const values = { u: undefined, f() {}, n: NaN, d: new Date(0), s: 'é"\ud800', a: [undefined, () => 1, null], o: { x: {} }, b: Object("x") };
  const expected = JSON.stringify({ ...values, big: 0 });
  assert.equal(stringify({ ...values, big: 0n }), expected);
});

test("what is no JSON is a failure of its change", () => {
  const cycle = {};
  cycle.cycle = cycle;
  for (const value of [undefined, () => 1, cycle]) {
    assert.throws(() => stringify(value), { class: "poison", code: "document" });
  }
  assert.throws(() => new RawJson("{"), SyntaxError);
});

test("numerics become numbers with their digits", () => {
  const written = (text) => stringify({ n: jsonNumber(text) });
  assert.equal(written("1234567890123456789012345678901234567890.50"), '{"n":1234567890123456789012345678901234567890.50}');
  assert.equal(written("-0.00"), '{"n":-0.00}');
  for (const none of ["NaN", "Infinity", "-Infinity", "", "007", "1,5", null, undefined]) assert.equal(written(none), '{"n":null}');
});

test("the columns of a request are found wherever they stand", () => {
  const request = ' { "changes" : [ [ "insert" , "1" , [ 9007199254740993 , "a]\\\"" , null ] , [ -9007199254740993, {"]": "["}, 1 ] ] ] ,'
    + ' "x\\"y" : {"changes":[]} , "v" : 1 } ';
  const { changes } = readExactly(request, new Set([0, 2]));
  assert.deepEqual(changes[0][2], [9007199254740993n, 'a]"', null]);
  assert.deepEqual(changes[0][3], [-9007199254740993n, { "]": "[" }, 1]);
  assert.deepEqual(parseExactly("[1, \"2\", [], {\"a\": 1}]"), [1, "2", [], { a: 1 }]);
});
