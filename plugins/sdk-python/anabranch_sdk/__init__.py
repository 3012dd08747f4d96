"""Write plugins for Anabranch in Python.

`transform` makes a plugin of a function that answers one change of a row, `sink` one of a class that delivers documents;
`anabranch plugin build` makes a component of the module that has it as `plugin`. `anabranch_sdk.testing` runs it natively,
without one. The modules `http`, `metrics`, `query` and `state` are not loaded here: who imports one asks to be granted it.
"""

from .failure import Failure
from .host import config, log
from .jsontext import RawJson, json_number
from .plugin import ABSENT, SKIP, Change, Document, Plugin, transform
from .sinks import Batch, Delivered, SinkDocument, SinkPlugin, sink

__all__ = [
    "ABSENT",
    "SKIP",
    "Batch",
    "Change",
    "Delivered",
    "Document",
    "Failure",
    "Plugin",
    "RawJson",
    "SinkDocument",
    "SinkPlugin",
    "config",
    "json_number",
    "log",
    "sink",
    "transform",
]
