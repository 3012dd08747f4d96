// Makes documents of `{{table}}`.
import { transform } from "anabranch-sdk";

/** The columns that are read. */
export interface Row {
{{fields}}
}

export const plugin = transform<Row>({
  tables: [{{table_text}}],
  // In this order; no others are sent.
  columns: [{{columns}}],
  // These come as the text that they are, with all their digits: `row.….parse()` gives their value.
  raw: [{{raw}}],

  transform({ row }) {
    // null: this row has no document.
    return { ...row };
  },
});
