"""The exports of a component. `anabranch plugin build` writes the module that calls this."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from . import host
from .batch import run
from .failure import Failure
from .plugin import Plugin, describe


class _Print:
    """What a library prints belongs into the host's log."""

    def __init__(self, write: Any) -> None:
        self._write = write

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                self._write(line)
        return len(text)

    def flush(self) -> None:
        pass


def component(project: ModuleType, *, name: str, version: str, demanded: str | None) -> tuple[type, type]:
    """The classes `Describe` and `Transform` for the plugin of a module."""
    # Only where a component is made are these there.
    from componentize_py_types import Err  # type: ignore[import-not-found]
    from wit_world import exports  # type: ignore[import-not-found]
    from wit_world.imports import config, log, types  # type: ignore[import-not-found]

    plugin = getattr(project, "plugin", None)
    if not isinstance(plugin, Plugin):
        raise TypeError(f"the module {project.__name__} has no `plugin`, made by `transform(…)`")
    levels = {level.name.lower(): level for level in log.Level}
    host.bind(lambda level, message: log.log(levels[level], message), config.get)
    classes = {kind.name.lower(): kind for kind in types.FailureClass}
    description = describe(plugin, name, version, demanded)
    # An integer of a json column may be long; what it costs, the call's deadline limits.
    sys.set_int_max_str_digits(0)
    printed = False

    class Describe(exports.Describe):  # type: ignore[misc]
        def describe(self) -> str:
            return description

    class Transform(exports.Transform):  # type: ignore[misc]
        def transform(self, batch: bytes) -> bytes:
            nonlocal printed
            if not printed:
                printed = True
                sys.stdout, sys.stderr = _Print(host.log.info), _Print(host.log.warn)  # type: ignore[assignment]
            try:
                return run(plugin, batch)
            except Failure as failure:
                classified = classes[failure.failure_class]
                raise Err(types.Failure(classified, failure.code, failure.message)) from None

    return Describe, Transform
