"""Write transforms for Anabranch in Python.

`transform` makes a plugin of a function that answers one change of a row; `anabranch plugin build` makes a component
of the module that has it as `plugin`. `anabranch_sdk.testing` runs it natively, without one.
"""

from .failure import Failure
from .host import config, log
from .jsontext import RawJson, json_number
from .plugin import ABSENT, SKIP, Change, Document, Plugin, transform

__all__ = [
    "ABSENT",
    "SKIP",
    "Change",
    "Document",
    "Failure",
    "Plugin",
    "RawJson",
    "config",
    "json_number",
    "log",
    "transform",
]
