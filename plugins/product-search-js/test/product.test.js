import assert from "node:assert/strict";
import { test } from "node:test";

import { RawJson } from "anabranch-sdk";
import { describe, table } from "anabranch-sdk/testing";

import { plugin } from "../src/index.js";

const product = (price, active) => ({
  name: 'Kettle "Uno"',
  description: null,
  price,
  active,
  tags: ["kitchen", "steel"],
  attributes: new RawJson('{"watts": 2200.50}'),
});

test("an active product is found", () => {
  const [outcome] = table(plugin).insert("1", product("19.90", true)).run();
  assert.equal(
    outcome.text,
    '{"title":"Kettle \\"Uno\\"","text":"","price":19.90,"tags":["kitchen","steel"],"attributes":{"watts": 2200.50}}',
  );
});

test("a price that is no number is null", () => {
  const [outcome] = table(plugin).insert("1", product("NaN", true)).run();
  assert.equal(outcome.document.price, null);
});

test("an inactive product has no document", () => {
  const outcomes = table(plugin).update("1", product("19.90", false)).insert("2", product("1", true)).run();
  assert.deepEqual(outcomes.map(({ kind }) => kind), ["delete", "emit"]);
});

test("it says which columns it reads", () => {
  assert.deepEqual(describe(plugin).columns, ["name", "description", "price", "active", "tags", "attributes"]);
});
