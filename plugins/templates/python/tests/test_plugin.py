import unittest

from anabranch_sdk.testing import Table

from {{module}} import plugin


class Documents(unittest.TestCase):
    def test_a_row_becomes_a_document(self) -> None:
        row = {
{{test_row}}
        }
        (outcome,) = Table(plugin).insert("1", row).run()
        self.assertEqual(outcome.text, {{document_text}})


if __name__ == "__main__":
    unittest.main()
