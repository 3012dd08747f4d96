"""The exports of a component. `anabranch plugin build` writes the module that calls this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from . import host
from .batch import run
from .failure import Failure, sendable
from .plugin import describe
from .sinks import Instance, SinkPlugin


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


class _Host:
    """The host's own functions, with the names of `host.Native`. What is not asked for is not there."""

    def __init__(self, uses: Collection[str]) -> None:
        # Only where a component is made are these there.
        from wit_world.imports import config, log  # type: ignore[import-not-found]

        levels = {level.name.lower(): level for level in log.Level}
        self.log = lambda level, message: log.log(levels[level], sendable(message))
        self.get = config.get
        if "query" in uses:
            from wit_world.imports import query

            statement = query.Statement
            self.query = _asking(lambda asked: query.query([statement(sql, sets) for sql, sets in asked]))
        if "state" in uses:
            from wit_world.imports import state

            self.state_get = _asking(state.get)
            self.state_set = _asking(state.set)
            self.state_delete = _asking(state.delete)
            self.state_keys = _asking(state.keys)
        if "metrics" in uses:
            from wit_world.imports import metrics

            def pairs(labels: host.Labels) -> list[Any]:
                return [metrics.Label(name, value) for name, value in labels]

            self.count = _asking(lambda name, labels, by: metrics.count(name, pairs(labels), by))
            self.gauge = _asking(lambda name, labels, value: metrics.gauge(name, pairs(labels), value))
        if "http" in uses:
            from .wasi_http import send

            self.send = send


def _asking(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the host, with its failures raised."""
    from componentize_py_types import Err  # type: ignore[import-not-found]

    def asking(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Err as error:
            failure = error.value
        raise Failure(failure.class_.name.lower(), failure.code, failure.message)

    return asking


def component(
    project: ModuleType, *, name: str, version: str, demanded: str | None, uses: Collection[str]
) -> dict[str, type]:
    """The classes that a component exports for the plugin of a module, by their names.

    uses: what the plugin asks for beside the log and its settings.
    """
    from componentize_py_types import Err
    from wit_world import exports  # type: ignore[import-not-found]
    from wit_world.imports import plugin_types

    plugin = project.plugin
    host.bind(_Host(uses))
    classes = {kind.name.lower(): kind for kind in plugin_types.FailureClass}
    description = describe(plugin, name, version, demanded)
    # An integer of a json column may be long; what it costs, the call's deadline limits.
    sys.set_int_max_str_digits(0)
    printed = False

    def answering(call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal printed
        if not printed:
            printed = True
            sys.stdout, sys.stderr = _Print(host.log.info), _Print(host.log.warn)
        try:
            return call(*arguments)
        except Failure as failure:
            classified = classes[failure.failure_class]
            code, message = sendable(failure.code), sendable(failure.message)
            raise Err(plugin_types.Failure(classified, code, message)) from None

    class Describe(exports.Describe):  # type: ignore[misc]
        def describe(self) -> str:
            return description

    if isinstance(plugin, SinkPlugin):
        return {"Describe": Describe} | _sink(exports, plugin, answering)

    class Transform(exports.Transform):  # type: ignore[misc]
        def transform(self, batch: bytes) -> bytes:
            reply: bytes = answering(run, plugin, batch)
            return reply

    return {"Describe": Describe, "Transform": Transform}


def _sink(exports: Any, plugin: SinkPlugin, answering: Callable[..., Any]) -> dict[str, type]:
    instance = Instance(plugin)

    class Sink(exports.Sink):  # type: ignore[misc]
        def open(self, config: str) -> None:
            answering(instance.open, config)

        def deliver(self, batch: bytes) -> bytes:
            reply: bytes = answering(instance.deliver, batch)
            return reply

    classes: dict[str, type] = {"Sink": Sink}
    # What the world does not export is not there to be derived from.
    if plugin.purges:

        class Purge(exports.Purge):  # type: ignore[misc]
            def purge(self, destination: str) -> None:
                answering(instance.purge, destination)

        classes["Purge"] = Purge
    if plugin.has_generations:

        class Generations(exports.Generations):  # type: ignore[misc]
            def begin(self, destination: str, place: str) -> bool:
                return answering(instance.begin, destination, place)

            def switch(self, destination: str, place: str) -> None:
                answering(instance.switch, destination, place)

            def abandon(self, destination: str, place: str) -> None:
                answering(instance.abandon, destination, place)

        classes["Generations"] = Generations
    return classes
