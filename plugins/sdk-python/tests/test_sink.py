"""Sinks, natively: what reaches them, and what they answer."""

import dataclasses
import pathlib
import unittest

from anabranch_sdk import Failure, SinkDocument, sink
from anabranch_sdk.msgpack import decode, encode
from anabranch_sdk.sinks import Instance
from anabranch_sdk.testing import OpenSink, describe

GOLDEN = pathlib.Path(__file__).parents[3] / "tests/golden/payload"


def golden(name):
    return bytes.fromhex("".join((GOLDEN / f"{name}.msgpack.hex").read_text().split()))


@dataclasses.dataclass
class Settings:
    room: int
    key: str | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


class Keeping:
    def __init__(self, settings):
        if settings.room == 0:
            raise Failure.fatal("room", "there is none")
        if settings.room < 0:
            raise ValueError("less than none")
        self.kept = {}

    def deliver(self, batch):
        self.batch = batch
        return batch.each(self.put)

    def put(self, document):
        if document.id == "busy":
            raise Failure.retry("busy", "later", after=1.5)
        if document.id == "bug":
            return None.missing
        if "bad" in (document.body or ""):
            raise Failure.poison("bad", "never")
        self.kept[document.id] = document.body

    def purge(self, destination):
        if destination != "all":
            raise Failure.fatal("unknown", destination)
        self.kept.clear()


plugin = sink(Keeping, settings=Settings)


class Shown(Keeping):
    def __init__(self, settings):
        super().__init__(settings)
        self.places = {}

    def begin(self, destination, place):
        if destination == "forgotten":
            return
        self.places[place] = {}
        return bool(self.kept)

    def deliver(self, batch):
        if batch.place is None:
            return super().deliver(batch)
        if batch.place not in self.places:
            raise Failure.fatal("place-gone", f"there is no {batch.place}")
        for document in batch.documents:
            self.places[batch.place][document.id] = document.body
        return batch.accepted()

    def switch(self, destination, place):
        if place not in self.places:
            raise Failure.fatal("place-gone", f"there is no {place}")
        self.kept = self.places[place]

    def abandon(self, destination, place):
        if place == "bug":
            return None.missing
        self.places.pop(place, None)


class Silent:
    def __init__(self, settings):
        pass

    def deliver(self, batch):
        self.batch = batch
        return self.answer(batch)

    def answer(self, batch):
        return batch.accepted()


def document(id, body=None, destination="d"):
    return SinkDocument(destination, id, body)


def _batch(destination):
    documents = [["upsert", "1", destination, b"{}", 0, 0]]
    head = {"v": 1, "entity": "public.products", "origin": "stream", "generation": 1, "destinations": ["d"]}
    return encode(head | {"documents": documents})


class Sinks(unittest.TestCase):
    def fails(self, call, *arguments):
        with self.assertRaises(Failure) as raised:
            call(*arguments)
        return raised.exception

    def test_there_is_one_result_for_each_document(self):
        documents = [document("1", '{"a": 1.50}'), document("2", "bad"), document("3")]
        results = OpenSink(plugin, {"room": 3}).deliver(documents)
        seen = [each and (each.failure_class, each.code) for each in results]
        self.assertEqual(seen, [None, ("poison", "bad"), None])

    def test_what_nobody_classified_is_tried_again_and_gives_up_no_document(self):
        documents = [document("1", "{}"), document("bug", "{}"), document("2", "bad")]
        results = OpenSink(plugin, {"room": 3}).deliver(documents)
        seen = [each and (each.failure_class, each.code) for each in results]
        self.assertEqual(seen, [None, ("retry", "exception"), ("retry", "exception")])
        self.assertRegex(results[1].message, "the sink raised AttributeError")

    def test_nothing_is_tried_behind_what_is_to_be_tried_again(self):
        opened = OpenSink(plugin, {"room": 3})
        results = opened.deliver([document("1"), document("busy"), document("2", "bad")])
        seen = [each and (each.failure_class, each.after) for each in results]
        self.assertEqual(seen, [None, ("retry", 1.5), ("retry", 1.5)])

    def test_destinations_are_emptied_where_the_sink_can(self):
        opened = OpenSink(plugin, {"room": 3})
        opened.purge("all")
        self.assertEqual(self.fails(opened.purge, "other").code, "unknown")
        self.assertEqual((plugin.purges, sink(Silent).purges), (True, False))

    def test_a_destination_is_built_beside_what_readers_see(self):
        shown = sink(Shown, settings=Settings)
        self.assertEqual((shown.has_generations, plugin.has_generations), (True, False))
        opened = OpenSink(shown, {"room": 3})
        readers = lambda: list(opened._instance._sink.kept)  # noqa: E731
        self.assertIs(opened.begin("all", "1-a"), False)
        opened.deliver([document("1")], place="1-a")
        opened.switch("all", "1-a")
        self.assertIs(opened.begin("all", "2-b"), True)
        self.assertEqual(opened.deliver([document("2", "{}")], place="2-b"), [None])
        self.assertEqual(opened.deliver([document("3", "{}")]), [None])
        self.assertEqual(readers(), ["1", "3"])
        opened.switch("all", "2-b")
        self.assertEqual(readers(), ["2"])
        opened.abandon("all", "2-c")
        gone = lambda: opened.deliver([document("2")], place="2-c")  # noqa: E731
        self.assertEqual(self.fails(gone).code, "place-gone")
        self.assertEqual(self.fails(opened.switch, "all", "2-c").failure_class, "fatal")
        self.assertEqual(self.fails(opened.abandon, "all", "bug").code, "exception")
        # Readers would be switched at once.
        said = self.fails(opened.begin, "forgotten", "3-d")
        self.assertEqual((said.failure_class, said.code), ("fatal", "results"))
        self.assertRegex(said.message, "^`begin` returned NoneType: True where readers see anything")
        self.assertEqual(self.fails(Instance(shown).begin, "all", "3-d").code, "not-open")

    def test_a_part_of_what_builds_beside_is_refused(self):
        def method(self, destination, place):
            pass

        for names, missing in [
            (["begin", "switch"], "all three of them: `abandon` is missing$"),
            (["abandon"], "all three of them: `begin` and `switch` are missing$"),
        ]:
            with self.subTest(names=names), self.assertRaisesRegex(TypeError, missing):
                sink(type("Partly", (Silent,), dict.fromkeys(names, method)))
        with self.assertRaisesRegex(TypeError, "`begin` is missing$"):
            sink(type("Partly", (Silent,), {"begin": 1, "switch": method, "abandon": method}))

    def test_the_golden_batch_is_read(self):
        data = golden("deliver")
        instance = Instance(sink(Silent))
        self.assertEqual(self.fails(instance.deliver, data).code, "not-open")
        instance.open("{}")
        self.assertEqual(instance.deliver(data), b"\x93\x91\x00\x91\x00\x91\x00")
        batch = instance._sink.batch
        seen = (batch.entity, batch.origin, batch.generation, batch.place)
        self.assertEqual(seen, ("public.products", "stream", 3, None))
        seen = [(each.destination, each.id, each.body, each.lsn) for each in batch.documents]
        expected = [
            ("products", "7", '{"a": 1.50,\n "b": "\\ud800"}', "16/B374D848"),
            ("products", '8 "Uno"', None, "FFFFFFFF/FFFFFFFF"),
            ("all", "é", "null", "0/0"),
        ]
        self.assertEqual(seen, expected)
        instance.deliver(golden("deliver-place"))
        self.assertEqual((instance._sink.batch.place, len(instance._sink.batch.documents)), ("3-5f2c81d0", 2))
        for cut in range(len(data)):
            self.assertEqual(self.fails(instance.deliver, data[:cut]).code, "batch", f"cut at {cut}")

    def test_what_the_sink_answers_wrongly_fails_the_batch(self):
        for answered in (None, [], [1], (None,)):
            opened = OpenSink(sink(type("Odd", (Silent,), {"answer": lambda self, batch, answered=answered: answered})))
            self.assertEqual(self.fails(opened.deliver, [document("1")]).code, "results")
        broken = OpenSink(sink(type("Broken", (Silent,), {"answer": lambda self, batch: None.missing})))
        failure = self.fails(broken.deliver, [document("1")])
        self.assertEqual((failure.failure_class, failure.code), ("retry", "exception"))
        stuck = OpenSink(sink(type("Stuck", (Silent,), {"purge": lambda self, destination: None.missing})))
        failure = self.fails(stuck.purge, "d")
        self.assertEqual((failure.failure_class, failure.code), ("retry", "exception"))

    def test_c096_wrong_settings_are_told_without_their_values(self):
        def said(settings):
            return self.fails(OpenSink, plugin, settings).message

        self.assertEqual(said({}), "`config` of the sink: missing field `room`")
        self.assertRegex(said({"room": 1, "kye": "marker"}), "unknown field `kye`, expected `room`, `key`, `tags`$")
        for wrong in ({"room": "marker"}, {"room": True}, {"room": 1, "key": 7}, {"room": 1, "tags": "marker"}):
            self.assertRegex(said(wrong), "^`config` of the sink: `[a-z]+` has the wrong type$")
        self.assertEqual(said({"room": 0}), "there is none")
        self.assertEqual(self.fails(OpenSink, plugin, {"room": -1}).failure_class, "fatal")
        OpenSink(sink(Silent), {"anything": 1})

    def test_c096_settings_that_cannot_be_made_are_told_without_their_values(self):
        @dataclasses.dataclass
        class Picky:
            url: str
            made: str = dataclasses.field(init=False)

            def __post_init__(self):
                if self.url == "told":
                    raise Failure.fatal("url", "it cannot be that")
                raise ValueError(f"{self.url} is no URL")

        picky = sink(Silent, settings=Picky)
        failure = self.fails(OpenSink, picky, {"url": "marker"})
        self.assertEqual((failure.failure_class, failure.code), ("fatal", "settings"))
        self.assertRegex(failure.message, "`Picky` of `url` raised ValueError")
        self.assertNotIn("marker", failure.message)
        self.assertRegex(self.fails(OpenSink, picky, {"url": "x", "made": "y"}).message, "unknown field `made`")
        self.assertEqual(self.fails(OpenSink, picky, {"url": "told"}).code, "url")

    def test_a_failure_in_half_a_character_is_still_that_failure(self):
        halves = Failure.retry("bu\udcff", "a file \udcff, a pair \ud83d\ude00")
        instance = Instance(sink(type("Halves", (Silent,), {"answer": lambda self, batch: [halves]})))
        instance.open("{}")
        data = _batch(0)
        self.assertEqual(decode(instance.deliver(data)), [[1, "retry", "bu\ufffd", "a file \ufffd, a pair \U0001f600"]])

    def test_a_destination_that_is_not_there_is_refused(self):
        instance = Instance(sink(Silent))
        instance.open("{}")
        instance.deliver(_batch(0))
        for index in (-1, 1):
            self.assertEqual(self.fails(instance.deliver, _batch(index)).code, "batch")

    def test_describe_says_what_a_sink_is(self):
        expected = {"name": "test", "version": "0.0.0", "kind": "sink", "encoding": "msgpack"}
        self.assertEqual(describe(plugin), expected | {"sdk": "anabranch-sdk-python 0.1.0"})

    def test_what_is_no_sink_is_refused(self):
        for make, settings in [({}, None), (dict, None), (Keeping, dict)]:
            with self.subTest(make=make), self.assertRaises(TypeError):
                sink(make, settings=settings)

    def test_what_is_returned_in_place_of_raised_is_no_success(self):
        busy = Failure.retry("busy", "the service says 503")

        async def later(*_):
            self.fail("it is never run")

        for answer, code in [(lambda *_: busy, "busy"), (later, "async")]:
            methods = dict.fromkeys(["deliver", "purge", "begin", "switch", "abandon"], answer)
            opened = OpenSink(sink(type("All", (Silent,), methods)))
            calls = [lambda: opened.deliver([SinkDocument("all", "1", "{}")]), lambda: opened.purge("all")]
            calls += [lambda call=getattr(opened, name): call("all", "1") for name in ("begin", "switch", "abandon")]
            for call in calls:
                self.assertEqual(self.fails(call).code, code)
            each = type("Each", (Silent,), {"deliver": lambda _, batch, answer=answer: batch.each(answer)})
            results = OpenSink(sink(each)).deliver([SinkDocument("all", "1", "{}"), SinkDocument("all", "2", "{}")])
            self.assertEqual([result.code for result in results], [code, code])
        other = type("Other", (Silent,), {"deliver": lambda _, batch: batch.each(lambda document: document.id)})
        self.assertEqual(OpenSink(sink(other)).deliver([SinkDocument("all", "1", "{}")]), [None])

    def test_messagepack_comes_back_as_it_was(self):
        for value in [
            None, True, False, 0, 127, 128, 65536, -1, -33, 2**63, -(2**63), "", "ß", "x" * 70_000, b"x" * 300, [],
            [1] * 20, [None] * 70_000, {"a": [{"b": 1}]}, {f"k{at}": at for at in range(20)},
        ]:  # fmt: skip
            self.assertEqual(decode(encode(value)), value)


if __name__ == "__main__":
    unittest.main()
