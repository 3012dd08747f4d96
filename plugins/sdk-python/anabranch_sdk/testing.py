"""Runs plugins natively: batches as the host sends them, and answers as it reads them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypeVar

from . import host, plugin as plugins
from .batch import run
from .failure import Failure
from .jsontext import RawJson, stringify
from .msgpack import decode, encode
from .plugin import Change, Plugin
from .sinks import Delivered, Instance, SinkDocument, SinkPlugin

Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request that a plugin makes."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


def reset() -> None:
    """Forgets settings, log lines, answers, the store and numbers: for `setUp`."""
    host.native.__init__()  # type: ignore[misc]


def set_config(settings: Mapping[str, str]) -> None:
    """Sets what `config` gives, in place of what was set before."""
    host.native.settings = dict(settings)


def take_log() -> list[tuple[str, str]]:
    """Level and message of the log lines since the last call."""
    lines = list(host.native.lines)
    host.native.lines.clear()
    return lines


def set_query(answer: Callable[[str, list[str | None]], list[dict[str, Any]]]) -> None:
    """Sets what questions are answered with: a function of a statement's SQL and one set of parameters, as texts."""
    host.native.answer = answer


def set_http(respond: Callable[[Request], tuple[int, str]]) -> None:
    """Sets what requests are answered with: a function that gives status and body, or raises a Failure."""

    def received(sent: host.Sent) -> host.Received:
        headers = {name: value.decode() for name, value in sent.headers}
        status, body = respond(Request(sent.method, sent.url, headers, sent.body))
        return host.Received(status, [], body.encode())

    host.native.respond = received


def stored() -> dict[str, str]:
    """What the store has, as texts."""
    return {key: value.decode(errors="replace") for key, value in host.native.state.items()}


def metric(series: str) -> float | None:
    """What a number came to: `name`, or `name{label="value"}`."""
    return host.native.metrics.get(series)


def change(row: Row, **rest: Any) -> Change[Row]:
    """An insert of a row, with id `1`, to be given to a plugin."""
    values: dict[str, Any] = {
        "operation": "insert", "origin": "stream", "id": "1", "old": None,
        "lsn": "0/1", "commit_time_us": 0, "sequence": 0,
    }  # fmt: skip
    return Change(row=row, **(values | rest))


def describe(plugin: Plugin[Any] | SinkPlugin) -> dict[str, Any]:
    """What `describe` gives for a plugin."""
    said: dict[str, Any] = json.loads(plugins.describe(plugin, "test", "0.0.0"))
    return said


@dataclasses.dataclass(frozen=True)
class OneDocument:
    """One document of an outcome."""

    id: str | None
    destination: str | None
    #: Its JSON text.
    text: str
    #: The same as Python reads it.
    body: Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An outcome as the host would read it."""

    kind: Literal["emit", "delete", "skip", "failed"]
    documents: tuple[OneDocument, ...] = ()
    failure: Failure | None = None

    @property
    def document(self) -> Any:
        """The one document, where it is one, as Python reads it."""
        return self.documents[0].body if len(self.documents) == 1 else None

    @property
    def text(self) -> str | None:
        """Its text."""
        return self.documents[0].text if len(self.documents) == 1 else None


def _type_of(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "integer"
        case float():
            return "float"
        case Decimal():
            return "numeric"
        case list() | tuple():
            return "array"
        case dict() | RawJson():
            return "json"
    return "text"


class Table:
    """Changes of a table, as a batch."""

    def __init__(
        self,
        plugin: Plugin[Any],
        *,
        columns: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None,
        origin: Literal["stream", "backfill"] = "stream",
    ) -> None:
        """columns: those that are sent, where the plugin reads all.

        types: types of columns as the host names them (`numeric`, `timestamptz`), where the values do not tell.
        """
        asked = columns if columns is not None else plugin.columns
        if asked is None:
            raise TypeError("the plugin reads all columns: name those of the table, `columns=[…]`")
        self._plugin = plugin
        self._columns = list(asked)
        self._types = dict(types or {})
        self._origin = origin
        self._changes: list[tuple[str, str, Mapping[str, Any] | None, Mapping[str, Any] | None]] = []

    def insert(self, id: str, row: Any) -> Table:
        """A new row, as a mapping or a dataclass; columns that are not named were not sent."""
        return self._push("insert", id, row, None)

    def read(self, id: str, row: Any) -> Table:
        """A row that a backfill read."""
        return self._push("read", id, row, None)

    def update(self, id: str, row: Any, old: Any = None) -> Table:
        """A new version of a row."""
        return self._push("update", id, row, old)

    def delete(self, id: str, old: Any) -> Table:
        """The end of a row."""
        return self._push("delete", id, None, old)

    def _push(self, operation: str, id: str, row: Any, old: Any) -> Table:
        self._changes.append((operation, id, _mapping(row), _mapping(old)))
        return self

    def _values(self, row: Mapping[str, Any] | None) -> tuple[list[Any] | None, list[int]]:
        if row is None:
            return None, []
        for name in row:
            if name not in self._columns:
                raise TypeError(f"the table has no column `{name}`")
        values: list[Any] = []
        absent: list[int] = []
        for at, name in enumerate(self._columns):
            value = row.get(name)
            if name not in row or value is plugins.ABSENT:
                absent.append(at)
                value = None
            elif value is not None:
                self._types.setdefault(name, _type_of(value))
                if isinstance(value, Decimal):
                    value = str(value)
                if name in self._plugin.raw:
                    value = stringify(value)
            values.append(value)
        return values, absent

    def request(self) -> bytes:
        """The batch as the host would send it."""
        changes: list[list[Any]] = []
        for sequence, (operation, id, row, old) in enumerate(self._changes):
            values, absent = self._values(row)
            before, absent_before = self._values(old)
            missing = [absent, absent_before] if absent or absent_before else None
            changes.append([operation, id, values, before, "0/1", 0, sequence, missing, {}])
        types = [self._types.get(name, "text") for name in self._columns]
        relation = {"schema": "public", "table": "test", "columns": self._columns, "types": types, "key": []}
        return stringify({"v": 1, "relation": relation, "origin": self._origin, "changes": changes}).encode()

    def run(self) -> list[Outcome]:
        """Runs the plugin over the changes; raises a Failure where the whole batch failed."""
        return [_outcome(outcome) for outcome in _outcomes(run(self._plugin, self.request()).decode())]


def _mapping(row: Any) -> Mapping[str, Any] | None:
    if row is None or isinstance(row, Mapping):
        return row
    # Not asdict, which copies what is inside.
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}


def _outcomes(reply: str) -> list[Any]:
    """The outcomes of a reply, their documents as text: `run` puts no white space outside of documents."""
    decoder = json.JSONDecoder()
    outcomes: list[Any] = json.loads(reply)
    mark = '"document":'
    at = 0
    for outcome in outcomes:
        for document in outcome.get("emit", ()) if isinstance(outcome, dict) else ():
            start = reply.index(mark, at) + len(mark)
            _, at = decoder.raw_decode(reply, start)
            document["text"] = reply[start:at]
    return outcomes


def _outcome(outcome: Any) -> Outcome:
    if isinstance(outcome, str):
        return Outcome(outcome)  # type: ignore[arg-type]
    if failed := outcome.get("failed"):
        return Outcome("failed", failure=Failure(failed["class"], failed["code"], failed["message"]))
    documents = (
        OneDocument(each.get("id"), each.get("destination"), each["text"], each["document"])
        for each in outcome["emit"]
    )
    return Outcome("emit", tuple(documents))


class OpenSink:
    """A sink that was opened with settings, as the host does. Raises a Failure where it refuses them."""

    def __init__(self, plugin: SinkPlugin, settings: Mapping[str, Any] | None = None) -> None:
        self._instance = Instance(plugin)
        self._instance.open(json.dumps(settings or {}))

    def deliver(
        self, documents: Iterable[SinkDocument], *, entity: str = "public.test", place: str | None = None
    ) -> list[Delivered]:
        """Delivers documents; gives a result for each: None where it was accepted, else the Failure."""
        given = list(documents)
        destinations = list(dict.fromkeys(each.destination for each in given))
        elements = []
        for each in given:
            body = None if each.body is None else each.body.encode()
            operation = "delete" if body is None else "upsert"
            at = destinations.index(each.destination)
            elements.append([operation, each.id, at, body, 1, each.commit_time_us, {}])
        request = {"v": 1, "entity": entity, "origin": "stream", "generation": 1}
        request |= {} if place is None else {"place": place}
        request |= {"destinations": destinations, "documents": elements}
        return [_delivered(*result) for result in decode(self._instance.deliver(encode(request)))]

    def purge(self, destination: str) -> None:
        """Empties a destination."""
        self._instance.purge(destination)

    def begin(self, destination: str, place: str) -> bool:
        """Makes an empty place beside what readers see; gives whether they see anything."""
        return self._instance.begin(destination, place)

    def switch(self, destination: str, place: str) -> None:
        """Shows a place to the readers of its destination."""
        self._instance.switch(destination, place)

    def abandon(self, destination: str, place: str) -> None:
        """Removes a place that is of no use any more."""
        self._instance.abandon(destination, place)


def _delivered(tag: int, *failed: Any) -> Delivered:
    if tag == 0:
        return None
    failure_class, code, message, *after = failed
    return Failure(failure_class, code, message, after=after[0] / 1000 if after else None)


__all__ = [
    "OneDocument",
    "OpenSink",
    "Outcome",
    "Request",
    "Table",
    "change",
    "describe",
    "metric",
    "reset",
    "set_config",
    "set_http",
    "set_query",
    "stored",
    "take_log",
]
