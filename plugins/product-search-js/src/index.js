// Makes search documents of `public.products`, as `product-search` does in Rust. Products that are not active have
// none.
import { jsonNumber, transform } from "anabranch-sdk";

export const plugin = transform({
  tables: ["public.products"],
  columns: ["name", "description", "price", "active", "tags", "attributes"],
  // Every digit, and the text as it is, of what JSON.parse would round.
  raw: ["attributes"],
  destination: "products",

  transform({ row }) {
    if (!row.active) return null;
    return {
      title: row.name,
      text: row.description ?? "",
      price: jsonNumber(row.price),
      tags: row.tags ?? [],
      attributes: row.attributes,
    };
  },
});
