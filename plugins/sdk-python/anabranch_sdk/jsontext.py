"""JSON that keeps what Python's own cannot: texts that stand for themselves, and the digits of decimals."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

from .failure import Failure

#: The host takes documents that are nested no deeper.
_DEPTH = 128
#: Stands for a raw text until the document around it is written. A document may say the same by chance; then the
#: numbers do not match, and it is written in the slow way.
_MARK = "\ufdd0raw\ufdd0"
_QUOTED_MARK = json.dumps(_MARK, ensure_ascii=False)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")


class RawJson:
    """JSON text that stands as it is in a document: digits of numbers, order of keys and white space are kept.

    Columns that a transform names in `raw` come as such.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        json.loads(text)  # a text that is none would spoil the answers of its whole batch
        self.text = text.strip()

    def parse(self) -> Any:
        """The value. Floats are doubles; `json.loads(raw.text, parse_float=Decimal)` keeps their digits."""
        return json.loads(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawJson) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"RawJson({self.text!r})"


def raw_part(text: str) -> RawJson:
    """A part of the host's text, which is known to be JSON."""
    raw = RawJson.__new__(RawJson)
    raw.text = text
    return raw


def json_number(text: str | None) -> RawJson | None:
    """A numeric column (a string) as a JSON number with all its digits.

    None for NULL, `NaN` and the infinities, which are no JSON numbers.
    """
    return raw_part(text) if text is not None and _NUMBER.fullmatch(text) else None


#: The raw texts of the document that is being written.
_pending: list[str] = []


def _special(value: object) -> object:
    if isinstance(value, RawJson):
        _pending.append(value.text)
        return _MARK
    if isinstance(value, Decimal):
        if not value.is_finite():
            return None
        _pending.append(str(value))
        return _MARK
    raise TypeError(f"{type(value).__name__} is no JSON")


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False, default=_special
).encode


def stringify(value: object) -> str:
    """A document as JSON text. Floats that are no numbers become null."""
    _pending.clear()
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except (TypeError, ValueError, RecursionError):
        # Not a number, a lone surrogate, or what is no JSON: the slow way takes the first two.
        return _slowly(value, 0)
    if not _pending:
        return text
    parts = text.split(_QUOTED_MARK)
    if len(parts) != len(_pending) + 1:
        return _slowly(value, 0)
    out = [parts[0]]
    for raw, part in zip(_pending, parts[1:], strict=True):
        out += (raw, part)
    return "".join(out)


def _unwritable(problem: str) -> Failure:
    return Failure.poison("document", f"the document cannot be written as JSON: {problem}")


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    try:
        quoted.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return quoted


def _key(key: object) -> str:
    if isinstance(key, str):
        return _quoted(key)
    if key is None or isinstance(key, bool | int | float):
        return _quoted(_slowly(key, 0))
    raise _unwritable(f"a key is {type(key).__name__}")


def _slowly(value: object, depth: int) -> str:
    if depth > _DEPTH:
        raise _unwritable(f"it is nested deeper than {_DEPTH}, or contains itself")
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, RawJson):
        return value.text
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    if isinstance(value, Decimal):
        return str(value) if value.is_finite() else "null"
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_slowly(item, depth + 1) for item in value) + "]"
    if isinstance(value, dict):
        entries = (f"{_key(key)}:{_slowly(item, depth + 1)}" for key, item in value.items())
        return "{" + ",".join(entries) + "}"
    raise _unwritable(f"{type(value).__name__} is no JSON")
