"""Sinks: how one is defined, what comes to it, and what it answers."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, Protocol

from .failure import Failure, done, sendable, sink_failure
from .msgpack import decode, encode

#: What became of one document: None where it was accepted, which means that it is durable, else why not.
Delivered = Failure | None
#: The methods of a sink that builds a destination beside what its readers see.
_GENERATIONS = ("begin", "switch", "abandon")


@dataclasses.dataclass(slots=True)
class SinkDocument:
    """A document, or the end of one."""

    #: Where it goes.
    destination: str
    id: str
    #: Its JSON text, to be put under the id whether one is there or not. None: the id is to be removed, whether it is
    #: there or not.
    body: str | None
    #: Position of the commit that made it, as Postgres writes it; 0/0 where a backfill read the row.
    lsn: str = "0/0"
    #: When that was committed: microseconds since 1970-01-01 UTC.
    commit_time_us: int = 0


@dataclasses.dataclass(slots=True)
class Batch:
    """Documents of one mapping, in commit order. Several may have the same id: the last one wins."""

    #: The table whose rows made them, as `schema.table`.
    entity: str
    origin: Literal["stream", "backfill"]
    #: Counts the rebuilds of the mapping.
    generation: int
    documents: list[SinkDocument]
    #: The place that all of it is for, where a sink with `begin`, `switch` and `abandon` builds their destination, which is
    #: one then. None: they are for what readers see.
    place: str | None = None

    def accepted(self) -> list[Delivered]:
        """Every document was accepted."""
        return [None] * len(self.documents)

    def each(self, deliver: Callable[[SinkDocument], object]) -> list[Delivered]:
        """One result for each document, by a function that returns where it is accepted and raises where it is not.

        Behind a failure that is not poison nothing more is tried: the batch comes again.
        """
        results: list[Delivered] = []
        for document in self.documents:
            try:
                done(deliver(document), "the sink")
                results.append(None)
            except Exception as raised:  # noqa: BLE001 (whatever it is concerns this document)
                failure = sink_failure(raised)
                results.append(failure)
                if failure.failure_class != "poison":
                    results += [failure] * (len(self.documents) - len(results))
                    break
        return results


class Sink(Protocol):
    """Delivers documents. A sink that has a method `purge(destination)` too can empty a destination.

    One that has the methods of `Generations` can build it beside what its readers see.
    """

    def __init__(self, settings: Any) -> None: ...

    def deliver(self, batch: Batch) -> list[Delivered]:
        """Delivers a batch, in order, and gives one result for each document, in order."""


class Generations(Sink, Protocol):
    """Can build a destination beside what its readers see, and show it to them at once: all three methods, or none.

    The host begins a place for each rebuild, fills it (`batch.place` says what is for it), and switches once it is whole. Each
    method may be called again with the same words, on another instance, too, and comes to the same.
    """

    def begin(self, destination: str, place: str) -> bool:
        """Makes an empty place for a destination; one of that name that is there is emptied.

        Returns whether readers see anything under the destination now: where not, the host switches at once.
        """

    def switch(self, destination: str, place: str) -> None:
        """Shows the place to the readers of the destination, in one step. All other places of it are removed.

        Raises a fatal Failure where the place is not there any more.
        """

    def abandon(self, destination: str, place: str) -> None:
        """Removes a place that is of no use any more.

        One that readers see stays, and one that is not there is removed already.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class SinkPlugin:
    """A sink, to stand as `plugin` in its module. Made by `sink`."""

    make: type[Sink]
    settings: type | None
    name: str | None
    version: str | None
    #: Whether it can empty a destination.
    purges: bool
    #: Whether it can build one beside what readers see.
    has_generations: bool


def sink(
    make: type[Sink], *, settings: type | None = None, name: str | None = None, version: str | None = None
) -> SinkPlugin:
    """Makes a plugin of a class that is made with its settings, delivers, and may purge and build beside.

    settings: a dataclass whose fields are the settings; what it does not have is refused. A dict of all otherwise.
    name, version: else those of pyproject.toml.
    """
    if not isinstance(make, type) or not callable(getattr(make, "deliver", None)):
        raise TypeError("a sink is a class with a method `deliver(batch)`")
    if settings is not None and not (isinstance(settings, type) and dataclasses.is_dataclass(settings)):
        raise TypeError("`settings` is a dataclass; its fields are the settings")
    purge = getattr(make, "purge", None)
    if purge is not None and not callable(purge):
        raise TypeError("`purge` is a method")
    return SinkPlugin(make, settings, name, version, purge is not None, _has_generations(make))


def _has_generations(make: type) -> bool:
    methods = {name: getattr(make, name, None) for name in _GENERATIONS}
    missing = [f"`{name}`" for name, method in methods.items() if not callable(method)]
    if missing and any(method is not None for method in methods.values()):
        verb = "are" if len(missing) > 1 else "is"
        raise TypeError(
            "a sink that builds beside what readers see has methods `begin`, `switch` and `abandon`, all three of them: "
            f"{' and '.join(missing)} {verb} missing"
        )
    return not missing


def _settings(kind: type | None, config: str) -> Any:
    """The settings as they were declared. Errors have no values: one may be a secret."""
    given = json.loads(config)
    if kind is None:
        return given
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    hints = typing.get_type_hints(kind)

    def wrong(problem: str) -> Failure:
        return Failure.fatal("settings", f"`config` of the sink: {problem}")

    for name, value in given.items():
        if name not in fields:
            known = ", ".join(f"`{known}`" for known in fields) or "none"
            raise wrong(f"unknown field `{name}`, expected {known}")
        if not _fits(value, hints[name]):
            raise wrong(f"`{name}` has the wrong type")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in given:
            raise wrong(f"missing field `{name}`")
    try:
        return kind(**given)
    except Failure:
        raise
    except Exception as raised:  # noqa: BLE001 (whatever it is)
        # Its text may have a value.
        names = ", ".join(f"`{name}`" for name in given) or "no fields"
        raise wrong(f"`{kind.__name__}` of {names} raised {type(raised).__name__}; a Failure would say why") from None


def _fits(value: object, hint: Any) -> bool:
    """Whether a value of JSON is of a type; true for what is not looked into."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    plain = origin or hint
    if plain is Any or not isinstance(plain, type):
        return True
    if isinstance(value, bool):
        return plain in (bool, object)
    return isinstance(value, plain) or (plain is float and isinstance(value, int))


def _malformed(problem: object) -> Failure:
    return Failure.fatal("batch", f"the batch is malformed: {problem}")


def _position(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _read(data: bytes) -> Batch:
    try:
        request = decode(data)
        if request["v"] == 1:
            destinations = request["destinations"]
            documents = [_document(elements, destinations) for elements in request["documents"]]
            place = request.get("place")
            return Batch(request["entity"], request["origin"], request["generation"], documents, place)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise _malformed(error) from None
    message = f"this plugin reads payload version 1, the host sent {request['v']}"
    raise Failure.fatal("payload-version", message)


def _document(elements: list[Any], destinations: list[str]) -> SinkDocument:
    operation, id, destination, body, lsn, commit_time_us, *_ = elements
    if operation not in ("upsert", "delete"):
        raise Failure.fatal("operation", f"operation `{operation}` is not known")
    if (body is None) != (operation == "delete"):
        raise _malformed("an upsert has a body, a delete has none")
    if destination < 0:
        raise _malformed("a document names a destination that is not there")
    text = None if body is None else body.decode()
    return SinkDocument(destinations[destination], id, text, _position(lsn), commit_time_us)


def _written(results: object, count: int) -> bytes:
    if not isinstance(results, list) or len(results) != count:
        answered = f"{len(results)} results" if isinstance(results, list) else "no list of results"
        message = f"`deliver` returned {answered} for {count} documents: one for each, in order"
        raise Failure.fatal("results", message)
    elements: list[list[Any]] = []
    for result in results:
        if result is None:
            elements.append([0])
        elif isinstance(result, Failure):
            after = [] if result.after is None else [max(0, round(result.after * 1000))]
            elements.append([1, result.failure_class, sendable(result.code), sendable(result.message), *after])
        else:
            raise Failure.fatal("results", "a result is None (accepted) or a Failure")
    return encode(elements)


class Instance:
    """A sink at work: what the interfaces `sink`, `purge` and `generations` do. It raises nothing but Failures."""

    def __init__(self, plugin: SinkPlugin) -> None:
        self._plugin = plugin
        self._sink: Any = None

    def open(self, config: str) -> None:
        try:
            self._sink = self._plugin.make(_settings(self._plugin.settings, config))
        except Exception as raised:  # noqa: BLE001 (whatever it is: settings come to the same each time)
            raise sink_failure(raised, "fatal") from None

    def deliver(self, data: bytes) -> bytes:
        batch = _read(data)
        try:
            return _written(done(self._opened().deliver(batch), "the sink"), len(batch.documents))
        except Exception as raised:  # noqa: BLE001 (whatever it is)
            raise sink_failure(raised) from None

    def purge(self, destination: str) -> None:
        self._call("purge", destination)

    def begin(self, destination: str, place: str) -> bool:
        seen = self._call("begin", destination, place)
        # Where readers see nothing they are switched at once: nobody is to say so by a forgotten `return`.
        if not isinstance(seen, bool):
            what = f"`begin` returned {type(seen).__name__}"
            message = f"{what}: True where readers see anything under the destination, else False"
            raise Failure.fatal("results", message)
        return seen

    def switch(self, destination: str, place: str) -> None:
        self._call("switch", destination, place)

    def abandon(self, destination: str, place: str) -> None:
        self._call("abandon", destination, place)

    def _call(self, method: str, *arguments: str) -> object:
        try:
            return done(getattr(self._opened(), method)(*arguments), "the sink")
        except Exception as raised:  # noqa: BLE001 (whatever it is)
            raise sink_failure(raised) from None

    def _opened(self) -> Any:
        if self._sink is None:
            raise Failure.fatal("not-open", "the sink was not opened")
        return self._sink
