"""A whole batch: from the host's bytes to the reply's (`wit/v1/payload-json.md`)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any

from .failure import Failure, done, failure_of, sendable
from .jsontext import raw_part, stringify
from .plugin import ABSENT, SKIP, Change, Document, Plugin

#: Gives a row of a tuple's values and the positions that were not sent.
_Reader = Callable[[list[Any], list[int] | None], Any]


def run(plugin: Plugin[Any], batch: bytes) -> bytes:
    """Runs a plugin over a request and gives the reply. Raises a Failure where the whole batch cannot be answered."""
    return ("[" + ",".join(_answers(plugin, batch)) + "]").encode()


class _Malformed(Failure):
    """The host's bytes are not what the payload page says: nothing of the batch can be answered."""

    def __init__(self, problem: object) -> None:
        super().__init__("fatal", "batch", f"the batch is malformed: {problem}")


def _read(plugin: Plugin[Any], batch: bytes) -> dict[str, Any]:
    try:
        request: dict[str, Any] = json.loads(batch)
        version = request.get("v")
        if version != 1:
            raise Failure.fatal("payload-version", f"this plugin reads payload version 1, the host sent {version}")
        columns = request["relation"]["columns"]
        request["changes"], request["origin"]
    except RecursionError:
        # Of one row, which the host finds by splitting.
        raise Failure.poison("batch", "the batch cannot be read: a json value is nested too deep") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Malformed(error) from None
    if plugin.columns is not None and list(plugin.columns) != columns:
        asked = ", ".join(plugin.columns)
        raise Failure.fatal("columns", f"the host sent the columns {', '.join(columns)}; asked were {asked}")
    return request


def _reader(plugin: Plugin[Any], columns: list[str]) -> _Reader:
    raw = [at for at, name in enumerate(columns) if name in plugin.raw]
    count = len(columns)

    def values_of(values: list[Any]) -> list[Any]:
        if len(values) != count:
            raise _Malformed(f"{len(values)} values for {count} columns")
        for at in raw:
            value = values[at]
            if value is None:
                continue
            if not isinstance(value, str):
                raise _Malformed(f"the raw column {columns[at]} is no string; the host is too old")
            values[at] = raw_part(value)
        return values

    def as_dict(values: list[Any], absent: list[int] | None) -> dict[str, Any]:
        row = dict(zip(columns, values_of(values)))  # noqa: B905 (of one length)
        for at in absent or ():
            del row[columns[at]]
        return row

    def as_object(values: list[Any], absent: list[int] | None) -> Any:
        values = values_of(values)
        for at in absent or ():
            values[at] = ABSENT
        return make(*values)

    if plugin.row is None:
        return as_dict
    fields = dataclasses.fields(plugin.row)
    names = [field.name for field in fields]

    def by_name(*values: Any) -> Any:
        return plugin.row(**dict(zip(names, values)))  # type: ignore[misc]  # noqa: B905

    make: Callable[..., Any] = by_name if any(field.kw_only for field in fields) else plugin.row
    return as_object


def _answers(plugin: Plugin[Any], batch: bytes) -> list[str]:
    request = _read(plugin, batch)
    read = _reader(plugin, request["relation"]["columns"])
    origin = request["origin"]
    transform = plugin.transform

    def change_of(elements: list[Any]) -> Change[Any] | Failure:
        try:
            operation, id, values, old, lsn, commit_time_us, sequence, absent = elements[:8]
        except ValueError as error:
            raise _Malformed(error) from None
        absent_now, absent_old = absent or (None, None)
        try:
            before = None if old is None else read(old, absent_old)
            row = before if values is None else read(values, absent_now)
        except _Malformed:
            raise
        except Exception as raised:  # noqa: BLE001 (a row may refuse its values)
            return failure_of(raised)
        if row is None:
            return Failure.poison("no-row", "the change has neither a new nor an old row")
        return Change(operation, origin, id, row, before, lsn, commit_time_us, sequence)

    changes: Iterable[Change[Any] | Failure] = map(change_of, request["changes"])
    if plugin.prepare is not None:
        changes = list(changes)
        _prepare(plugin, [change for change in changes if isinstance(change, Change)])
    answers = []
    for change in changes:
        if isinstance(change, Failure):
            answers.append(_failed(change))
            continue
        try:
            answers.append(_outcome(transform(change)))
        except Exception as raised:  # noqa: BLE001 (whatever a transform raises concerns its change)
            answers.append(_failed(failure_of(raised)))
    return answers


def _prepare(plugin: Plugin[Any], changes: list[Change[Any]]) -> None:
    assert plugin.prepare is not None
    try:
        done(plugin.prepare(changes), "`prepare`")
    except Exception as raised:  # noqa: BLE001 (whatever it raises concerns the batch)
        raise failure_of(raised) from None


def _failed(failure: Failure) -> str:
    code, message = sendable(failure.code), sendable(failure.message)
    said = {"class": failure.failure_class, "code": code, "message": message}
    return json.dumps({"failed": said})


def _outcome(answered: object) -> str:
    if answered is None:
        return '"delete"'
    if answered is SKIP:
        return '"skip"'
    if isinstance(answered, Document):
        return '{"emit":[' + _emitted(answered) + "]}"
    if not isinstance(answered, list):
        if type(answered) is not dict:
            done(answered, "the transform")
        return '{"emit":[{"document":' + stringify(answered) + "}]}"
    if not answered:
        return '"delete"'
    if not all(isinstance(item, Document) for item in answered):
        raise Failure.poison("answer", "a list is answered that has other items than Documents")
    return '{"emit":[' + ",".join(map(_emitted, answered)) + "]}"


def _emitted(document: Document) -> str:
    text = '"document":' + stringify(document.body) + "}"
    if document.destination is not None:
        text = '"destination":' + json.dumps(document.destination) + "," + text
    if document.id is not None:
        text = '"id":' + json.dumps(document.id) + "," + text
    return "{" + text
