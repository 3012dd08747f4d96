"""What the host grants, natively."""

import subprocess
import sys
import unittest
from decimal import Decimal

from anabranch_sdk import Failure, config, http, metrics, outbound, state, transform
from anabranch_sdk.query import query, query_many
from anabranch_sdk.testing import Table, metric, reset, set_http, set_query, stored


class Host(unittest.TestCase):
    def setUp(self):
        reset()

    def assertFails(self, failure_class, code, call, *arguments):
        with self.assertRaises(Failure) as raised:
            call(*arguments)
        self.assertEqual((raised.exception.failure_class, raised.exception.code), (failure_class, code))

    def test_questions_are_answered_by_a_test_as_the_host_would(self):
        asked = []
        rows = [{"id": 9007199254740993, "name": "Köln", "tags": ["a", None]}, {"id": 8, "name": None, "tags": []}]

        def answer(sql, parameters):
            asked.append((sql, parameters))
            return rows

        set_query(answer)
        self.assertEqual(query("select 1", "a", 7, Decimal("1.50"), True, None), rows)
        self.assertEqual(asked, [("select 1", ["a", "7", "1.50", "true", None])])
        self.assertEqual(len(query_many([("a", [["1"], ["2"]]), ("b", [()])])), 3)
        set_query(lambda sql, parameters: [])
        self.assertEqual(query("select 1"), [])
        with self.assertRaisesRegex(TypeError, "a parameter is a str"):
            query("select $1", {})

    def test_what_no_test_answers_is_denied_and_fails_the_change(self):
        plugin = transform(columns=["id"])(lambda change: query("select $1", change.row["id"]))
        (outcome,) = Table(plugin).insert("1", {"id": 1}).run()
        self.assertEqual((outcome.failure.failure_class, outcome.failure.code), ("fatal", "query-denied"))
        self.assertFails("fatal", "http-denied", http.request, "GET", "http://x")

    def test_the_store_keeps_texts_and_bytes(self):
        state.set("b", "Größe")
        state.set("a/1", b"\xff\x00")
        self.assertEqual((state.get("b"), state.get_bytes("a/1")), ("Größe", b"\xff\x00"))
        self.assertFails("poison", "state-text", state.get, "a/1")
        self.assertEqual(state.get_many(["c", "b"]), [None, "Größe"])
        state.set("a/2", "")
        self.assertEqual((state.get("a/2"), state.keys()), ("", ["a/1", "a/2", "b"]))
        self.assertEqual(state.keys("a/", after="a/1", limit=5), ["a/2"])
        state.delete("b")
        state.delete("b")
        self.assertEqual((state.get("b"), stored()["a/2"]), (None, ""))
        with self.assertRaisesRegex(TypeError, "is a str or bytes"):
            state.set("a", 7)

    def test_numbers_can_be_looked_at(self):
        metrics.count("rows", 2, kind="x")
        metrics.count("rows", kind="x")
        metrics.gauge("age", 1.5)
        metrics.gauge("age", 2)
        self.assertEqual((metric('rows{kind="x"}'), metric("age"), metric("none")), (3, 2, None))
        metrics.count("rows", name="a", by="b", value="c")
        metrics.gauge("age", 3, name="a", value="c")
        self.assertEqual((metric('rows{name="a",by="b",value="c"}'), metric('age{name="a",value="c"}')), (1, 3))
        with self.assertRaisesRegex(TypeError, "whole numbers"):
            metrics.count("rows", 0.5)

    def test_a_batch_is_prepared_once_before_its_first_change(self):
        known = {}
        asked = []

        def answer(sql, parameters):
            asked.append(parameters)
            return [{"name": f"of {parameters[0]}"}]

        def prepare(changes):
            brands = [change.row["brand"] for change in changes]
            if "bad" in brands:
                raise ValueError("no such brand")
            if "late" in brands:
                raise Failure.retry("late", "later")
            found = query_many([("a", [[brand] for brand in brands])])
            known.update(zip(brands, (rows[0]["name"] for rows in found), strict=True))

        set_query(answer)
        plugin = transform(columns=["brand"], prepare=prepare)(lambda change: known[change.row["brand"]])
        outcomes = Table(plugin).insert("1", {"brand": "a"}).insert("2", {"brand": "b"}).run()
        self.assertEqual([outcome.document for outcome in outcomes], ["of a", "of b"])
        self.assertEqual(asked, [["a"], ["b"]])
        bad = Table(plugin).insert("1", {"brand": "a"}).insert("2", {"brand": "bad"})
        self.assertFails("poison", "exception", bad.run)
        self.assertFails("retry", "late", Table(plugin).insert("1", {"brand": "late"}).run)

    def test_half_a_character_is_no_text_that_the_host_takes(self):
        half = "K\udcff"
        set_query(lambda sql, parameters: [])
        set_http(lambda request: (200, ""))
        for call in (
            lambda: query(f"select '{half}'"),
            lambda: query("select $1", half),
            lambda: state.get(half),
            lambda: state.get_many(["a", half]),
            lambda: state.set(half, "x"),
            lambda: state.delete(half),
            lambda: state.keys(half),
            lambda: state.keys(after=half),
            lambda: metrics.count(half),
            lambda: metrics.gauge("depth", 1, **{half: "x"}),
            lambda: metrics.count("rows", kind=half),
        ):
            self.assertFails("poison", "text", call)
        for call in (
            lambda: http.request("GET", f"http://x/{half}"),
            lambda: http.request(half, "http://x/"),
            lambda: http.request("GET", "http://x/", headers={half: "x"}),
        ):
            self.assertFails("poison", "http-request", call)
        self.assertIsNone(config(half))

    def test_requests_are_answered_by_a_test(self):
        sent = []

        def respond(request):
            sent.append((request.method, request.url, dict(request.headers), request.body.decode()))
            return 201, '{"a":1}'

        set_http(respond)
        answer = http.request("PUT", "http://x/y", headers={"x-own": "7"}, body="ß")
        self.assertEqual((answer.status, answer.ok, answer.json()), (201, True, {"a": 1}))
        self.assertEqual(sent, [("PUT", "http://x/y", {"x-own": "7"}, "ß")])

        def late(request):
            raise Failure.retry("http-timeout", "late")

        set_http(late)
        self.assertFails("retry", "http-timeout", http.request, "GET", "http://x")
        with self.assertRaisesRegex(TypeError, "json.dumps"):
            http.request("GET", "http://x", body={})

    def test_a_request_that_cannot_be_made_is_poison_and_told_without_its_secrets(self):
        set_http(lambda request: self.fail("it was sent"))
        for url, shown in [
            ("no url", "to a URL without scheme"),
            ("ftp://me:marker@host:21/marker?marker", "to ftp://host:21:"),
            ("https:///marker", "to https://:"),
            ("", "to a URL"),
        ]:
            with self.subTest(url=url), self.assertRaisesRegex(Failure, shown) as raised:
                http.request("GET", url)
            failure = raised.exception
            self.assertEqual((failure.failure_class, failure.code), ("poison", "http-request"))
            self.assertNotIn("marker", failure.message)
        self.assertEqual(outbound.target("HTTP://x:1?a=b#c"), (False, "x:1", "/?a=b"))
        self.assertEqual(outbound.target("https://x"), (True, "x", "/"))

    def test_the_hosts_words_begin_with_what_they_are(self):
        for message, expected in [
            ("denied: x: `y`", ("fatal", "http-denied", "x: `y`")),
            ("timeout: late", ("retry", "http-timeout", "late")),
            ("no connection: denied: by a server", ("retry", "http-failed", "no connection: denied: by a server")),
            ('ErrorCode::InternalError(Some("denied: set \\"a\\""))', ("fatal", "http-denied", 'set "a"')),
            ("ErrorCode::ConnectionTerminated", ("retry", "http-failed", "ErrorCode::ConnectionTerminated")),
        ]:
            failure = outbound.said(message)
            self.assertEqual((failure.failure_class, failure.code, failure.message), expected)

    def test_nothing_is_asked_for_by_the_way(self):
        """Which modules are loaded is what a plugin asks for: none of these by the SDK itself."""
        code = (
            "import sys, anabranch_sdk, anabranch_sdk.testing\n"
            "print([name for name in ('http', 'metrics', 'query', 'state') if 'anabranch_sdk.' + name in sys.modules])"
        )
        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(printed.stdout, "[]\n")


if __name__ == "__main__":
    unittest.main()
