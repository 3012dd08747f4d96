"""What is written as JSON, and how exactly."""

import json
import unittest
from decimal import Decimal

from anabranch_sdk import Failure, RawJson, json_number
from anabranch_sdk.jsontext import stringify


class Texts(unittest.TestCase):
    def test_raw_texts_stand_as_they_are_also_where_a_row_imitates_how(self):
        raw = RawJson(" 1.50 ")
        mark = "\ufdd0raw\ufdd0"
        expected = f'{{"a":1.50,"b":[1.50,"{mark}"],"c":1.50}}'
        self.assertEqual(stringify({"a": raw, "b": [raw, mark], "c": raw}), expected)
        self.assertEqual(stringify(raw), "1.50")
        for text in ["1e400", "123456789012345678901234567890", '"\\ud800"', '{"a":1,"a":2,\n "b": [1.50, {}]}', "null"]:
            self.assertEqual(stringify([RawJson(text), "é"]), f'[{text},"é"]')

    def test_decimals_keep_their_digits(self):
        long = "1234567890123456789012345678901234567890.50"
        self.assertEqual(stringify([Decimal(long), Decimal("1e400"), Decimal("NaN")]), f"[{long},1E+400,null]")
        self.assertEqual(stringify({"n": json_number(long), "z": json_number("-0.00")}), f'{{"n":{long},"z":-0.00}}')
        for none in ["NaN", "Infinity", "-Infinity", "", "007", "1,5", "1\n", None]:
            self.assertEqual(stringify(json_number(none)), "null")

    def test_the_slow_way_writes_what_the_fast_one_does(self):
        value = {
            "s": 'é"\\\n', "n": [1, -0.0, 1.5e300, 2**70, True, None], "o": {"x": {}, "y": []}, 3: "k", None: 1,
            True: 2, 1.5: (1, 2),
        }  # fmt: skip
        self.assertEqual(stringify([value, float("nan")]), f"[{stringify(value)},null]")

    def test_lone_surrogates_are_escaped(self):
        self.assertEqual(stringify({"\ud800": ["\udfff", "é"]}), '{"\\ud800":["\\udfff","é"]}')
        self.assertEqual(json.loads(stringify("\ud800")), "\ud800")

    def test_what_is_no_json_is_a_failure_of_its_change(self):
        cycle = []
        cycle.append(cycle)
        for value in [{1}, b"x", cycle, {(1, 2): 1}, object()]:
            with self.subTest(value=type(value)), self.assertRaises(Failure) as raised:
                stringify(value)
            self.assertEqual((raised.exception.failure_class, raised.exception.code), ("poison", "document"))
        with self.assertRaises(ValueError):
            RawJson("{")


if __name__ == "__main__":
    unittest.main()
