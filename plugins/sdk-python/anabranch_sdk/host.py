"""What the host offers: a log, and the mapping's settings.

Natively (in unit tests) log lines are recorded and settings are those of `testing.set_config`; a component binds the
host's own.
"""

from __future__ import annotations

from collections.abc import Callable

#: Lines and settings of native runs; `anabranch_sdk.testing` gives access.
native_lines: list[tuple[str, str]] = []
native_settings: dict[str, str] = {}


def _native_log(level: str, message: str) -> None:
    native_lines.append((level, message))


_log: Callable[[str, str], None] = _native_log
_get: Callable[[str], str | None] = native_settings.get


def bind(log_line: Callable[[str, str], None], get: Callable[[str], str | None]) -> None:
    """Makes the host's functions those of this module. A component does it before its first call."""
    global _log, _get
    _log, _get = log_line, get


class _Log:
    """Writes lines to the host's log, which limits their rate and length."""

    @staticmethod
    def error(message: str) -> None:
        _log("error", str(message))

    @staticmethod
    def warn(message: str) -> None:
        _log("warn", str(message))

    @staticmethod
    def info(message: str) -> None:
        _log("info", str(message))

    @staticmethod
    def debug(message: str) -> None:
        _log("debug", str(message))

    @staticmethod
    def trace(message: str) -> None:
        _log("trace", str(message))


log = _Log()


def config(key: str) -> str | None:
    """The text under a key of `[plugins.<name>] config`. Not at the top of a module: that runs when it is built."""
    return _get(key)
