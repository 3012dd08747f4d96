"""Makes search documents of `public.products`, as `product-search` does in Rust.

Products that are not active have none.
"""

from dataclasses import dataclass
from typing import Any

from anabranch_sdk import Change, RawJson, json_number, transform


@dataclass(slots=True)
class Product:
    """The columns that are read. The one of type RawJson comes as its text, with every digit."""

    name: str
    description: str | None
    price: str
    active: bool
    tags: list[str | None] | None
    attributes: RawJson | None


@transform(tables=["public.products"], row=Product, destination="products")
def plugin(change: Change[Product]) -> dict[str, Any] | None:
    product = change.row
    if not product.active:
        return None
    return {
        "title": product.name,
        "text": product.description or "",
        "price": json_number(product.price),
        "tags": product.tags or [],
        "attributes": product.attributes,
    }
