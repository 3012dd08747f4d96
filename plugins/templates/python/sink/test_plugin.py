import unittest

from anabranch_sdk import Failure, SinkDocument
from anabranch_sdk.testing import OpenSink, Request, reset, set_http

from {{module}} import plugin


class Deliveries(unittest.TestCase):
    def setUp(self) -> None:
        reset()
        # What a service was sent that has nothing yet.
        self.sent: list[str] = []

        def service(request: Request) -> tuple[int, str]:
            self.sent.append(f"{request.method} {request.url}")
            return {b'"busy"': 503, b'"bad"': 422, b"": 404}.get(request.body, 201), ""

        set_http(service)

    def deliver(self, *documents: tuple[str, str | None]) -> list[str]:
        opened = OpenSink(plugin, {"url": "https://x"})
        results = opened.deliver([SinkDocument("items", id, body) for id, body in documents])
        return ["accepted" if result is None else result.failure_class for result in results]

    def test_each_document_has_a_result(self) -> None:
        results = self.deliver(("1", "{}"), ("2", '"bad"'), ("a/ü", None), ("..", None))
        self.assertEqual(results, ["accepted", "poison", "accepted", "poison"])
        expected = ["PUT https://x/items/1", "PUT https://x/items/2", "DELETE https://x/items/a%2F%C3%BC"]
        self.assertEqual(self.sent, expected)

    def test_nothing_is_sent_behind_what_has_to_come_again(self) -> None:
        self.assertEqual(self.deliver(("1", '"busy"'), ("2", "{}")), ["retry", "retry"])
        self.assertEqual(self.sent, ["PUT https://x/items/1"])

    def test_a_misspelt_setting_is_refused(self) -> None:
        with self.assertRaisesRegex(Failure, "unknown field `uri`"):
            OpenSink(plugin, {"url": "https://x", "uri": ""})


if __name__ == "__main__":
    unittest.main()
