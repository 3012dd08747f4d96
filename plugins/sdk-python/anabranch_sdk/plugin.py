"""Plugins: how one is defined, what it says of itself, what it may answer."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from .jsontext import RawJson
from .sinks import SinkPlugin

SDK = "anabranch-sdk-python 0.1.0"

Row = TypeVar("Row")


class _Named:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


#: The answer that leaves the destination as it is.
SKIP = _Named("SKIP")
#: In a dataclass row: the column was not sent (in a dict it has no key).
ABSENT = _Named("ABSENT")


class Document:
    """One document with its own id or destination: to be answered, alone or in a list."""

    __slots__ = ("body", "destination", "id")

    def __init__(self, body: object, *, id: str | None = None, destination: str | None = None) -> None:
        for name, value in (("id", id), ("destination", destination)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"the {name} of a document is a str, not {type(value).__name__}")
        self.body = body
        self.id = id
        self.destination = destination


@dataclasses.dataclass(slots=True)
class Change(Generic[Row]):
    """One change of a row."""

    #: `read` is a row that a backfill read; `delete` comes only to plugins with `wants_deletes`.
    operation: Literal["insert", "update", "delete", "read"]
    origin: Literal["stream", "backfill"]
    #: The document id: the key's text. None where the table has no key.
    id: str | None
    #: The row as it is now; for a delete, the old row as far as the server sent it.
    row: Row
    #: The row before the change, as far as the server sent it.
    old: Row | None
    #: Position of the commit, as Postgres writes it.
    lsn: str
    #: When it was committed: microseconds since 1970-01-01 UTC.
    commit_time_us: int
    #: Position in its transaction or chunk.
    sequence: int


#: A document (what JSON can say, with RawJson and Decimal in it), None (this row has no document), `SKIP`, a
#: `Document`, or a list of them (an empty one is None).
Answer = Any


@dataclasses.dataclass(frozen=True, slots=True)
class Plugin(Generic[Row]):
    """A plugin, to stand as `plugin` in its module. Made by `transform`."""

    transform: Callable[[Change[Row]], Answer]
    name: str | None
    version: str | None
    tables: tuple[str, ...]
    columns: tuple[str, ...] | None
    raw: tuple[str, ...]
    destination: str | None
    wants_deletes: bool
    names_ids: bool
    depends_on: tuple[str, ...]
    row: type[Row] | None
    prepare: Callable[[Sequence[Change[Row]]], object] | None = None

    def __call__(self, change: Change[Row]) -> Answer:
        return self.transform(change)


def _texts(name: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"`{name}` is a list of str")
    return tuple(value)


def _raw_fields(row: type) -> list[str]:
    """The fields of a dataclass that are RawJson, or optional ones."""
    hints = typing.get_type_hints(row)
    return [name for name, hint in hints.items() if hint is RawJson or RawJson in typing.get_args(hint)]


def transform(
    *,
    name: str | None = None,
    version: str | None = None,
    tables: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    raw: Sequence[str] = (),
    row: type[Row] | None = None,
    destination: str | None = None,
    wants_deletes: bool = False,
    names_ids: bool = False,
    depends_on: Sequence[str] = (),
    prepare: Callable[[Sequence[Change[Row]]], object] | None = None,
) -> Callable[[Callable[[Change[Row]], Answer]], Plugin[Row]]:
    """Makes a plugin of a function that answers one change.

    name, version: else those of pyproject.toml.
    tables: the tables it is meant for, as `schema.table`.
    columns: the columns that it reads; no others are sent. All if left out.
    raw: columns that come as `RawJson`: the host's own JSON text.
    row: a dataclass whose fields are the columns; rows are dicts otherwise. Its fields of type `RawJson` are raw.
    destination: where its documents land unless the mapping says otherwise.
    wants_deletes: whether deletes come to it; otherwise the host deletes by document id.
    names_ids: whether its documents name their own ids; it must then want deletes too.
    depends_on: other tables whose rows its documents depend on.
    prepare: a function that is shown the changes of a batch before the first of them is answered: to ask the source or a
        service once for all of them, and keep the answers. What it raises is a failure of the whole batch.
    """
    raw = _texts("raw", raw)
    if row is not None:
        if not dataclasses.is_dataclass(row) or columns is not None or raw:
            raise TypeError("`row` is a dataclass; its fields are the columns, those of type RawJson the raw ones")
        columns = [field.name for field in dataclasses.fields(row)]
        raw = tuple(_raw_fields(row))
    names = None if columns is None else _texts("columns", columns)
    for stranger in raw:
        if names is not None and stranger not in names:
            raise TypeError(f"`raw` names `{stranger}`, which is not in `columns`")

    def decorate(function: Callable[[Change[Row]], Answer]) -> Plugin[Row]:
        return Plugin(
            transform=function,
            name=name,
            version=version,
            tables=_texts("tables", tables),
            columns=names,
            raw=raw,
            destination=destination,
            wants_deletes=wants_deletes,
            names_ids=names_ids,
            depends_on=_texts("depends_on", depends_on),
            row=row,
            prepare=prepare,
        )

    return decorate


def describe(plugin: Plugin[Any] | SinkPlugin, name: str, version: str, demanded: str | None = None) -> str:
    """What a plugin says of itself: the JSON of `wit/v1/describe.md`.

    name, version: those of pyproject.toml; demanded: the version that the build demands, if any.
    """
    names = {
        "name": plugin.name or name,
        "version": demanded if demanded is not None else plugin.version or version,
        "sdk": SDK,
    }
    if isinstance(plugin, SinkPlugin):
        return json.dumps(names | {"kind": "sink", "encoding": "msgpack"})
    return json.dumps(
        names
        | {
            "kind": "transform",
            "encoding": "json",
            "tables": plugin.tables,
            "columns": plugin.columns,
            "raw": plugin.raw,
            "destination": plugin.destination,
            "wants_deletes": plugin.wants_deletes,
            "names_ids": plugin.names_ids,
            "depends_on": plugin.depends_on,
        }
    )
