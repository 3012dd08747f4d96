"""A small store of keys and values, of each mapping and generation alone (`[plugins.<name>.grants] state = true`).

Whose plugin imports this module asks for it. What a call writes is durable before its documents are delivered, and lost
if the call fails. A batch that is sent again may meet its own earlier writes, so write what is the same when it is
written twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import host
from .failure import Failure, whole


def get(key: str) -> str | None:
    """The text under a key, where there is one."""
    return _text(key, get_bytes(key))


def get_bytes(key: str) -> bytes | None:
    """The bytes under a key, where there are some."""
    found: list[bytes | None] = host.current.state_get([_key(key)])
    return found[0]


def get_many(keys: Sequence[str]) -> list[str | None]:
    """The texts under some keys, in their order, read in one go."""
    found = host.current.state_get([_key(key) for key in keys])
    return [_text(key, value) for key, value in zip(keys, found, strict=True)]


def set(key: str, value: str | bytes) -> None:
    """Puts a text, or bytes, under a key."""
    if not isinstance(value, str | bytes):
        raise TypeError(f"a value of the store is a str or bytes, not {type(value).__name__}")
    host.current.state_set(_key(key), value.encode() if isinstance(value, str) else value)


def delete(key: str) -> None:
    """Removes a key, whether it is there or not."""
    host.current.state_delete(_key(key))


def keys(prefix: str = "", *, after: str | None = None, limit: int = 1000) -> list[str]:
    """The keys that begin with a prefix, after a key, in the order of their bytes; so many at the most."""
    found: list[str] = host.current.state_keys(_key(prefix), None if after is None else _key(after), limit)
    return found


def _key(key: str) -> str:
    return whole("a key of the store", key)


def _text(key: str, value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        message = f"the value under `{key}` is no text: `state.get_bytes` reads it"
        raise Failure.poison("state-text", message) from None
