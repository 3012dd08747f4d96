"""Rows in, documents out, whole batches as the host sends them."""

import unittest

from anabranch_sdk import RawJson
from anabranch_sdk.testing import Table, describe
from product_search_python import Product, plugin


def product(price: str, active: bool) -> Product:
    return Product('Kettle "Uno"', None, price, active, ["kitchen", "steel"], RawJson('{"watts": 2200.50}'))


class Products(unittest.TestCase):
    def test_an_active_product_is_found(self) -> None:
        (outcome,) = Table(plugin).insert("1", product("19.90", True)).run()
        self.assertEqual(
            outcome.text,
            '{"title":"Kettle \\"Uno\\"","text":"","price":19.90,"tags":["kitchen","steel"],'
            '"attributes":{"watts": 2200.50}}',
        )

    def test_a_price_that_is_no_number_is_null(self) -> None:
        (outcome,) = Table(plugin).insert("1", product("NaN", True)).run()
        self.assertIsNone(outcome.document["price"])

    def test_an_inactive_product_has_no_document(self) -> None:
        outcomes = Table(plugin).update("1", product("19.90", False)).insert("2", product("1", True)).run()
        self.assertEqual([outcome.kind for outcome in outcomes], ["delete", "emit"])

    def test_it_says_which_columns_it_reads(self) -> None:
        columns = ["name", "description", "price", "active", "tags", "attributes"]
        self.assertEqual(describe(plugin)["columns"], columns)


if __name__ == "__main__":
    unittest.main()
