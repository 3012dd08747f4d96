"""Questions to the source, to enrich documents (`[plugins.<name>.grants] query = true`).

Whose plugin imports this module asks for it. Whatever is asked in one go is answered from one snapshot, which sees the
changes of the batch that is being transformed. Names of tables need their schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from . import host
from .failure import Failure, whole

#: A parameter: Postgres reads its text for the type that it has in the statement. None is NULL.
Parameter = str | int | float | Decimal | bool | None
#: A row of an answer, by the names of its columns.
Row = dict[str, Any]


def query(sql: str, *parameters: Parameter) -> list[Row]:
    """The rows of one SELECT (or VALUES, or WITH … SELECT), with parameters for $1, $2, …"""
    return query_many([(sql, [parameters])])[0]


def query_many(statements: Iterable[tuple[str, Sequence[Sequence[Parameter]]]]) -> list[list[Row]]:
    """The rows of each set of parameters of each statement, in their order, from one snapshot.

    A statement runs once for each of its sets; `[()]` is one set without any parameter.
    """
    asked = [(whole("the SQL of a question", sql), [[_text(value) for value in one] for one in sets]) for sql, sets in statements]
    version, sets, *_ = json.loads(host.current.query(asked))
    if version != 1:
        raise Failure.fatal("payload-version", f"this plugin reads answers of version 1, the host sent {version}")
    return [[dict(zip(columns, values)) for values in rows] for columns, rows, *_ in sets]  # noqa: B905


def _text(value: Parameter) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return whole("a parameter of a question", value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    raise TypeError(f"a parameter is a str, int, float, Decimal, bool or None, not {type(value).__name__}")


__all__ = ["Parameter", "Row", "query", "query_many"]
