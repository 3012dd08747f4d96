import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { Failure, http, metrics, query, queryMany, state, transform } from "../src/index.js";
import { said, target } from "../src/outbound.js";
import { metric, reset, setHttp, setQuery, stored, table } from "../src/testing.js";

beforeEach(reset);

const fails = (call, failureClass, code) =>
  assert.throws(call, (error) => error instanceof Failure && error.class === failureClass && error.code === code);

test("questions are answered by a test, as the host would", () => {
  const asked = [];
  setQuery((sql, parameters) => {
    asked.push([sql, parameters]);
    return [{ id: 9007199254740993n, name: "Köln", tags: ["a", null], data: { n: 1.5 } }, { id: 8, name: null, tags: [], data: null }];
  });
  assert.deepEqual(query("select 1", ["a", 7, 8n, true, null]), [
    { id: 9007199254740993n, name: "Köln", tags: ["a", null], data: { n: 1.5 } },
    { id: 8, name: null, tags: [], data: null },
  ]);
  assert.deepEqual(asked, [["select 1", ["a", "7", "8", "true", null]]]);
  assert.equal(queryMany([{ sql: "a", parameters: [["1"], ["2"]] }, { sql: "b" }]).length, 3);
  setQuery(() => []);
  assert.deepEqual(query("select 1"), []);
  assert.throws(() => query("select $1", [{}]), /a parameter is a string/);
  assert.throws(() => query("select $1", "7"), /are an array/);
});

test("what no test answers is denied, and fails the change", () => {
  const plugin = transform({ columns: ["id"], transform: ({ row }) => query("select $1", [row.id]) });
  const [outcome] = table(plugin).insert("1", { id: 1 }).run();
  assert.deepEqual([outcome.failure.class, outcome.failure.code], ["fatal", "query-denied"]);
  fails(() => http.request("http://x"), "fatal", "http-denied");
});

test("the store keeps texts and bytes", () => {
  state.set("b", "Größe");
  state.set("a/1", new Uint8Array([255, 0]));
  assert.equal(state.get("b"), "Größe");
  assert.deepEqual(state.getBytes("a/1"), new Uint8Array([255, 0]));
  fails(() => state.get("a/1"), "poison", "state-text");
  assert.deepEqual(state.getMany(["c", "b"]), [undefined, "Größe"]);
  state.set("a/2", "");
  assert.equal(state.get("a/2"), "");
  assert.deepEqual(state.keys(), ["a/1", "a/2", "b"]);
  assert.deepEqual(state.keys({ prefix: "a/", after: "a/1", limit: 5 }), ["a/2"]);
  state.delete("b");
  state.delete("b");
  assert.deepEqual([state.get("b"), stored()["a/2"]], [undefined, ""]);
  assert.throws(() => state.set("a", 7), /is a string or a Uint8Array/);
});

test("a transform runs once in a test", () => {
  const plugin = transform({ columns: ["id"], transform: () => {
    metrics.count("rows");
    return { seen: metric("rows") };
  } });
  assert.equal(table(plugin).insert("1", { id: 1 }).run()[0].document.seen, 1);
  assert.equal(metric("rows"), 1);
});

test("numbers can be looked at", () => {
  metrics.count("rows", 2, { kind: "x" });
  metrics.count("rows", 1, { kind: "x" });
  metrics.gauge("age", 1.5);
  metrics.gauge("age", 2.5);
  assert.deepEqual([metric('rows{kind="x"}'), metric("age"), metric("none")], [3, 2.5, undefined]);
  assert.throws(() => metrics.count("rows", 0.5), /whole numbers/);
  assert.throws(() => metrics.gauge("age", "1"), /is a number/);
});

test("a batch is prepared once, before its first change", () => {
  let known;
  const asked = [];
  const plugin = transform({
    columns: ["brand"],
    prepare(changes) {
      const brands = changes.map(({ row }) => row.brand);
      if (brands.includes("bad")) throw new TypeError("no such brand");
      if (brands.includes("late")) throw Failure.retry("late", "later");
      known = new Map(brands.map((brand, at) => [brand, queryMany([{ sql: "a", parameters: brands.map((one) => [one]) }])[at][0].name]));
    },
    transform: ({ row }) => known.get(row.brand),
  });
  setQuery((sql, [brand]) => {
    asked.push(brand);
    return [{ name: `of ${brand}` }];
  });
  const outcomes = table(plugin).insert("1", { brand: "a" }).insert("2", { brand: "b" }).run();
  assert.deepEqual(outcomes.map(({ document }) => document), ["of a", "of b"]);
  fails(() => table(plugin).insert("1", { brand: "a" }).insert("2", { brand: "bad" }).run(), "poison", "exception");
  fails(() => table(plugin).insert("1", { brand: "late" }).run(), "retry", "late");
  const later = transform({ columns: ["id"], prepare: async () => {}, transform: () => null });
  fails(() => table(later).insert("1", { id: 1 }).run(), "fatal", "async");
  assert.throws(() => transform({ transform() {}, prepare: 7 }), /`prepare` is a function/);
});

test("half a character is no text that the host takes", () => {
  const half = "K\ud800";
  setQuery(() => []);
  for (const call of [
    () => query(`select '${half}'`), () => query("select $1", [half]), () => state.get(half), () => state.getMany(["a", half]),
    () => state.set(half, "x"), () => state.delete(half), () => state.keys({ prefix: half }), () => state.keys({ after: half }),
    () => metrics.count(half), () => metrics.gauge("depth", 1, { [half]: "x" }), () => metrics.count("rows", 1, { kind: half }),
  ]) {
    fails(call, "poison", "text");
  }
  fails(() => http.request(`http://x/${half}`), "poison", "http-request");
  state.set("\u{1f600}", "a pair");
  assert.equal(state.get("\u{1f600}"), "a pair");
});

test("requests are answered by a test", () => {
  const sent = [];
  setHttp((request) => {
    sent.push(request);
    return { status: 201, headers: { "X-One": "1" }, body: '{"a":1}' };
  });
  const answer = http.request("http://x/y", { method: "PUT", headers: { "x-own": "7" }, body: "ß" });
  assert.deepEqual([answer.status, answer.ok, answer.headers["x-one"], answer.json()], [201, true, "1", { a: 1 }]);
  const [{ method, url, headers, body }] = sent;
  assert.deepEqual([method, url, headers["x-own"], new TextDecoder().decode(body)], ["PUT", "http://x/y", "7", "ß"]);
  setHttp(() => {
    throw Failure.retry("http-timeout", "late");
  });
  fails(() => http.request("http://x"), "retry", "http-timeout");
  assert.throws(() => http.request("http://x", { metod: "PUT" }), /a request has no `metod`/);
  assert.throws(() => http.request("http://x", { body: {} }), /JSON.stringify/);
});

test("a request that cannot be made is poison, and told without its secrets", () => {
  setHttp(() => assert.fail("it was sent"));
  for (const [url, shown] of [
    ["no url", "to a URL without scheme"], ["ftp://me:marker@host:21/marker?marker", "to ftp://host:21:"],
    ["https:///marker", "to https://:"], ["", "to a URL"],
  ]) {
    assert.throws(() => http.request(url), (error) => error instanceof Failure && error.class === "poison"
      && error.code === "http-request" && error.message.includes(shown) && !error.message.includes("marker"), url);
  }
  assert.deepEqual(target("HTTP://x:1?a=b#c"), { scheme: "HTTP", authority: "x:1", path: "/?a=b" });
  assert.deepEqual(target("https://x"), { scheme: "HTTPS", authority: "x", path: "/" });
});

test("the host's words begin with what they are", () => {
  for (const [message, ...expected] of [
    ["denied: x: `y`", "fatal", "http-denied", "x: `y`"],
    ["timeout: late", "retry", "http-timeout", "late"],
    ["no connection: denied: by a server", "retry", "http-failed", "no connection: denied: by a server"],
    ['ErrorCode::InternalError(Some("denied: set \\"a\\""))', "fatal", "http-denied", 'set "a"'],
    ["ErrorCode::ConnectionTerminated", "retry", "http-failed", "ErrorCode::ConnectionTerminated"],
  ]) {
    const { class: failureClass, code, message: rest } = said(message);
    assert.deepEqual([failureClass, code, rest], expected);
  }
});
