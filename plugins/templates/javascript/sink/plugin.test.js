import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { open, reset, setHttp } from "anabranch-sdk/testing";

import { plugin } from "../src/index.js";

/** What a service was sent that has nothing yet. */
let sent = [];

beforeEach(() => {
  reset();
  sent = [];
  setHttp(({ method, url, body }) => {
    sent.push(`${method} ${url}`);
    const text = new TextDecoder().decode(body);
    return { status: { '"busy"': 503, '"bad"': 422, "": 404 }[text] ?? 201 };
  });
});

const deliver = (...documents) =>
  open(plugin, { url: "https://x" }).deliver(documents.map((document) => ({ destination: "items", ...document })));

test("each document has a result", () => {
  const results = deliver({ id: "1", body: "{}" }, { id: "2", body: '"bad"' }, { id: "a/ü" }, { id: ".." });
  assert.deepEqual(results.map((result) => result?.class ?? "accepted"), ["accepted", "poison", "accepted", "poison"]);
  assert.deepEqual(sent, ["PUT https://x/items/1", "PUT https://x/items/2", "DELETE https://x/items/a%2F%C3%BC"]);
});

test("nothing is sent behind what has to come again", () => {
  const results = deliver({ id: "1", body: '"busy"' }, { id: "2", body: "{}" });
  assert.deepEqual(results.map((result) => result?.class), ["retry", "retry"]);
  assert.deepEqual(sent, ["PUT https://x/items/1"]);
});

test("a misspelt setting is refused", () => {
  assert.throws(() => open(plugin, { url: "https://x", uri: "" }), /unknown field `uri`/);
});
