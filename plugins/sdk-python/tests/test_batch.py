"""Batches as the host sends them, answered natively."""

import dataclasses
import json
import unittest

from anabranch_sdk import ABSENT, SKIP, Document, Failure, RawJson, config, log, transform
from anabranch_sdk.batch import run
from anabranch_sdk.testing import Table, change, describe, set_config, take_log


@dataclasses.dataclass
class Note:
    id: int
    note: str | None
    data: RawJson | None = None


class Batches(unittest.TestCase):
    def test_answers_become_outcomes(self):
        @transform(columns=["note"])
        def plugin(change):
            match change.row["note"]:
                case "none":
                    return None
                case "skip":
                    return SKIP
                case "empty":
                    return []
                case "two":
                    return [Document({"n": 1}, id="a"), Document({"n": 2}, id="b", destination="d")]
                case note:
                    return {"note": note}

        table = Table(plugin)
        for note in ["x", "none", "skip", "empty", "two"]:
            table.insert("1", {"note": note})
        outcomes = table.run()
        self.assertEqual([outcome.kind for outcome in outcomes], ["emit", "delete", "skip", "delete", "emit"])
        self.assertEqual(outcomes[0].text, '{"note":"x"}')
        named = [(each.id, each.destination, each.text) for each in outcomes[4].documents]
        self.assertEqual(named, [("a", None, '{"n":1}'), ("b", "d", '{"n":2}')])

    def test_what_is_raised_concerns_its_own_change(self):
        @transform(columns=["note"])
        def plugin(change):
            match change.row["note"]:
                case "later":
                    raise Failure.retry("busy", "try again")
                case "bug":
                    return change.row["missing"]
                case "list":
                    return [1]
                case "set":
                    return {1}
                case "returned":
                    return Failure.fatal("returned", "in place of raised")
                case "async":
                    return later()
                case _:
                    return {"ok": True}

        async def later():
            return {"ok": True}

        table = Table(plugin)
        for note in ["later", "bug", "list", "set", "returned", "async", "fine"]:
            table.insert("1", {"note": note})
        outcomes = table.run()
        failures = [each.failure and (each.failure.failure_class, each.failure.code) for each in outcomes]
        self.assertEqual(
            failures,
            [
                ("retry", "busy"), ("poison", "exception"), ("poison", "answer"), ("poison", "document"), ("fatal", "returned"),
                ("fatal", "async"), None,
            ],
        )
        self.assertEqual(outcomes[1].failure.message, "the transform raised KeyError: 'missing'")

    def test_a_failure_in_half_a_character_is_still_that_failure(self):
        @transform(columns=["id"])
        def plugin(change):
            raise Failure.retry("bu\udcff", "a file \udcff")

        request = {"v": 1, "relation": {"columns": ["id"]}, "origin": "stream"}
        request["changes"] = [["insert", "1", [1], None, "0/1", 0, 0, None]]
        (outcome,) = json.loads(run(plugin, json.dumps(request).encode()))
        self.assertEqual(outcome["failed"], {"class": "retry", "code": "bu\ufffd", "message": "a file \ufffd"})

    def test_null_the_empty_string_and_absent_are_three_things(self):
        plugin = transform(columns=["a", "b", "c"])(lambda change: change.row)
        (outcome,) = Table(plugin).insert("1", {"a": None, "b": ""}).run()
        self.assertEqual(outcome.text, '{"a":null,"b":""}')

    def test_rows_may_be_dataclasses(self):
        seen = []
        plugin = transform(row=Note)(lambda change: seen.append(change) or change.row.data)
        self.assertEqual((plugin.columns, plugin.raw), (("id", "note", "data"), ("data",)))
        data = RawJson('{"a": 1.50, "a": 1e400}')
        (outcome, _) = Table(plugin).update("1", Note(1, None, data), {"id": 1}).insert("2", Note(2, "x")).run()
        self.assertEqual(seen[0].row, Note(1, None, data))
        self.assertEqual((seen[0].old.id, seen[0].old.note), (1, ABSENT))
        self.assertEqual(outcome.text, data.text)

    def test_a_dataclass_with_keywords_only_reads_by_name(self):
        row = dataclasses.make_dataclass("Row", [("b", str), ("a", str)], kw_only=True)
        plugin = transform(row=row)(lambda change: {"a": change.row.a, "b": change.row.b})
        (outcome,) = Table(plugin).insert("1", {"a": "A", "b": "B"}).run()
        self.assertEqual(outcome.document, {"a": "A", "b": "B"})

    def test_a_delete_has_the_old_row(self):
        @transform(columns=["id", "note"], wants_deletes=True)
        def plugin(change):
            return {"operation": change.operation, "row": change.row, "old": change.old}

        update, gone = Table(plugin).update("1", {"id": 1, "note": "x"}, {"id": 1}).delete("1", {"id": 1}).run()
        self.assertEqual(update.document, {"operation": "update", "row": {"id": 1, "note": "x"}, "old": {"id": 1}})
        self.assertEqual(gone.document, {"operation": "delete", "row": {"id": 1}, "old": {"id": 1}})

    def test_a_batch_that_does_not_fit_fails_as_a_whole(self):
        plugin = transform(columns=["id", "note"])(lambda change: change.row)
        for request, failure_class, code in [
            ("{", "fatal", "batch"),
            ("[]", "fatal", "batch"),
            ("{}", "fatal", "payload-version"),
            ('{"v":2}', "fatal", "payload-version"),
            ('{"v":1,"relation":{"columns":["id"]},"origin":"stream","changes":[]}', "fatal", "columns"),
            ('{"v":1,"relation":{"columns":["id","note"]},"origin":"stream"}', "fatal", "batch"),
            ('{"v":1,"relation":{"columns":["id","note"]},"origin":"stream","changes":[["insert"]]}', "fatal", "batch"),
            (
                '{"v":1,"relation":{"columns":["id","note"]},"origin":"stream","changes":'
                '[["insert","1",[1],null,"0/1",0,0,null]]}',
                "fatal",
                "batch",
            ),
            ('{"v":1,"deep":' + "[" * 100_000 + "]" * 100_000 + "}", "poison", "batch"),
        ]:
            with self.subTest(request=request[:80]), self.assertRaises(Failure) as raised:
                run(plugin, request.encode())
            failure = raised.exception
            self.assertEqual((failure.failure_class, failure.code), (failure_class, code))

    def test_further_elements_and_keys_are_passed_over(self):
        plugin = transform(columns=["id"])(lambda change: change.row)
        request = (
            b'{"v":1,"new":1,"relation":{"columns":["id"]},"origin":"stream","changes":'
            b'[["insert","1",[9007199254740993],null,"0/1",0,0,null,{},7,8]]}'
        )
        self.assertEqual(run(plugin, request), b'[{"emit":[{"document":{"id":9007199254740993}}]}]')

    def test_a_host_that_does_not_know_raw_columns_is_told(self):
        plugin = transform(columns=["data"], raw=["data"])(lambda change: change.row)
        request = (
            b'{"v":1,"relation":{"columns":["data"]},"origin":"stream","changes":'
            b'[["insert","1",[{"a":1}],null,"0/1",0,0,null,{}]]}'
        )
        with self.assertRaisesRegex(Failure, "the host is too old") as raised:
            run(plugin, request)
        self.assertEqual(raised.exception.failure_class, "fatal")

    def test_settings_and_log_lines_can_be_looked_at(self):
        @transform(columns=[])
        def plugin(change):
            log.warn(f"currency {config('currency')}")
            return {"missing": config("nothing")}

        set_config({"currency": "EUR"})
        take_log()
        self.assertEqual(plugin(change({})), {"missing": None})
        self.assertEqual(take_log(), [("warn", "currency EUR")])

    def test_describe_says_what_was_declared(self):
        plugin = transform(tables=["public.a"], columns=["b", "c"], raw=["c"], destination="d")(lambda change: None)
        expected = {
            "name": "test", "version": "0.0.0", "kind": "transform", "encoding": "json", "tables": ["public.a"],
            "columns": ["b", "c"], "raw": ["c"], "destination": "d", "wants_deletes": False, "names_ids": False,
            "depends_on": [], "sdk": "anabranch-sdk-python 0.1.0",
        }  # fmt: skip
        self.assertEqual(describe(plugin), expected)
        self.assertIsNone(describe(transform()(lambda change: None))["columns"])

    def test_options_that_do_not_fit_are_refused(self):
        for options in [
            {"tables": "public.a"},
            {"columns": ["a"], "raw": ["b"]},
            {"row": dict},
            {"row": Note, "columns": ["id"]},
            {"colour": "red"},
        ]:
            with self.subTest(options=options), self.assertRaises(TypeError):
                transform(**options)(lambda change: None)
        with self.assertRaises(TypeError):
            Document({}, id=7)
        with self.assertRaises(ValueError):
            Failure("worse", "a", "b")
        self.assertEqual(json.loads(RawJson(" 1 ").text), 1)


if __name__ == "__main__":
    unittest.main()
