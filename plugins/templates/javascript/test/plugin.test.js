import assert from "node:assert/strict";
import { test } from "node:test";

import { table } from "anabranch-sdk/testing";

import { plugin } from "../src/index.js";

test("a row becomes a document", () => {
  const row = {
{{test_row}}
  };
  const [outcome] = table(plugin).insert("1", row).run();
  assert.equal(outcome.text, {{document_text}});
});
