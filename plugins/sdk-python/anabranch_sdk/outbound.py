"""Where a request goes, and why there is no answer: what `http` and `wasi_http` both know."""

from __future__ import annotations

import re

from .failure import Failure, sendable

_URL = re.compile(r"(https?)://([^/?#]+)([^#]*)(?:#.*)?", re.IGNORECASE | re.DOTALL)
#: What of a URL is nobody's secret: not its user, path and query.
_SHOWN = re.compile(r"([a-z][a-z0-9+.-]*)://(?:[^/?#]*@)?([^/?#]*)", re.IGNORECASE)
#: How the host shows an error of a stream that has words of its own.
_INTERNAL = re.compile(r'(?:ErrorCode::)?InternalError\(Some\("(.*)"\)\)', re.DOTALL)


def target(url: str) -> tuple[bool, str, str]:
    """Whether it is `https`, the host with its port, and the path with its query."""
    parts = _URL.fullmatch(url)
    if parts is None or sendable(url) != url:
        raise wrong_url(url)
    scheme, authority, rest = parts.groups()
    return scheme.lower() == "https", authority, rest if rest.startswith("/") else f"/{rest}"


def wrong(problem: str) -> Failure:
    """The request itself cannot be made; others can."""
    return Failure.poison("http-request", problem)


def wrong_url(url: str) -> Failure:
    """No request can go there."""
    shown = _SHOWN.match(url)
    where = f"{shown[1]}://{shown[2]}" if shown else "a URL without scheme and host"
    return wrong(f"no request can go to {sendable(where)}: a URL is `https://host:port/path?query`")


def failed(message: str) -> Failure:
    """There is no answer; there may be one later."""
    return Failure.retry("http-failed", message)


def said(message: str) -> Failure:
    """The host's own words begin with what they are."""
    if wrapped := _INTERNAL.match(message):
        message = re.sub(r'\\(["\'\\])', r"\1", wrapped[1])
    if message.startswith("denied: "):
        return Failure.fatal("http-denied", message.removeprefix("denied: "))
    if message.startswith("timeout: "):
        return Failure.retry("http-timeout", message.removeprefix("timeout: "))
    return failed(message)
