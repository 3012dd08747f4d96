"""What the host offers: a log, the mapping's settings, and what it grants.

Natively (in unit tests) log lines and numbers are recorded, the store is a dict, and questions and requests are answered
as `testing` is told to; a component binds the host's own functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .failure import Failure, sendable
from .jsontext import stringify

#: Statements: SQL, and sets of parameters.
Statements = list[tuple[str, list[list[str | None]]]]
#: Labels of a number.
Labels = list[tuple[str, str]]


@dataclass
class Sent:
    """A request as it goes out."""

    method: str
    url: str
    headers: list[tuple[str, bytes]]
    body: bytes
    #: Seconds to wait for the answer to begin.
    timeout: float | None


@dataclass
class Received:
    """An answer as it comes in."""

    status: int
    headers: list[tuple[str, bytes]]
    body: bytes


@dataclass
class Native:
    """What native runs keep, and are answered with; `anabranch_sdk.testing` gives access."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    answer: Callable[[str, list[str | None]], list[dict[str, Any]]] | None = None
    respond: Callable[[Sent], Received] | None = None
    state: dict[str, bytes] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def log(self, level: str, message: str) -> None:
        self.lines.append((level, message))

    def get(self, key: str) -> str | None:
        return self.settings.get(key)

    def query(self, statements: Statements) -> bytes:
        if self.answer is None:
            raise Failure.fatal("query-denied", "no question is answered here: say how with `testing.set_query`")
        sets = []
        for sql, parameters in statements:
            for one in parameters:
                rows = self.answer(sql, one)
                columns = list(rows[0]) if rows else []
                sets.append([columns, [[row.get(name) for name in columns] for row in rows]])
        return stringify([1, sets]).encode()

    def state_get(self, keys: list[str]) -> list[bytes | None]:
        return [self.state.get(key) for key in keys]

    def state_set(self, key: str, value: bytes) -> None:
        self.state[key] = value

    def state_delete(self, key: str) -> None:
        self.state.pop(key, None)

    def state_keys(self, prefix: str, after: str | None, limit: int) -> list[str]:
        wanted = (key for key in self.state if key.startswith(prefix) and (after is None or key > after))
        return sorted(wanted)[:limit]

    def count(self, name: str, labels: Labels, by: int) -> None:
        series = _series(name, labels)
        self.metrics[series] = self.metrics.get(series, 0) + by

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        self.metrics[_series(name, labels)] = value

    def send(self, request: Sent) -> Received:
        if self.respond is None:
            raise Failure.fatal("http-denied", "no request is answered here: say how with `testing.set_http`")
        return self.respond(request)


def _series(name: str, labels: Labels) -> str:
    shown = ",".join(f"{label}={json.dumps(value)}" for label, value in labels)
    return f"{name}{{{shown}}}" if shown else name


#: The native host.
native = Native()
#: The host: it has the methods of `Native`. A component binds its own before its first call.
current: Any = native


def bind(host: Any) -> None:
    """Makes another host that of this process."""
    global current
    current = host


class _Log:
    """Writes lines to the host's log, which limits their rate and length."""

    @staticmethod
    def error(message: str) -> None:
        current.log("error", str(message))

    @staticmethod
    def warn(message: str) -> None:
        current.log("warn", str(message))

    @staticmethod
    def info(message: str) -> None:
        current.log("info", str(message))

    @staticmethod
    def debug(message: str) -> None:
        current.log("debug", str(message))

    @staticmethod
    def trace(message: str) -> None:
        current.log("trace", str(message))


log = _Log()


def config(key: str) -> str | None:
    """The text under a key of `[plugins.<name>] config`. Not at the top of a module: that runs when it is built."""
    # No setting has another name.
    return None if sendable(key) != key else current.get(key)
