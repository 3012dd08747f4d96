import assert from "node:assert/strict";
import { test } from "node:test";

import { table } from "anabranch-sdk/testing";

import { plugin } from "../src/index";

test("a row becomes a document", () => {
  const row = {
{{test_row}}
  };
  // What is raw is written here as its value.
  const [outcome] = table<any>(plugin).insert("1", row).run();
  assert.equal(outcome?.text, {{document_text}});
});
