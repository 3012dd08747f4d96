"""Requests over HTTP, to where the config lets the plugin go (`[plugins.<name>.grants] http`).

Whose plugin imports this module asks for it. A call waits for its answer, and has it whole; redirects are not followed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import host
from .failure import sendable
from .outbound import target, wrong


@dataclass(slots=True)
class Response:
    """An answer, whatever its status."""

    status: int
    #: By their names in lower case; of several of one name the first.
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def ok(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300

    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: str | bytes = b"",
    timeout: float | None = None,
) -> Response:
    """Sends a request and waits for the whole answer.

    headers: the host adds those that the config has for the URL's origin.
    timeout: seconds to wait for the answer to begin; never longer than the config lets a request take.

    Raises a Failure where there is no answer: code `http-denied` (fatal), `http-timeout` or `http-failed` (retry), or
    `http-request` (poison: no request can be made of the URL, the method or the headers).
    """
    if not isinstance(body, str | bytes):
        raise TypeError("the body of a request is a str or bytes: `json.dumps` makes one of a dict")
    target(url)
    if sendable(method) != method:
        raise wrong("the method is no word that can be sent")
    if any(sendable(name) != name for name in headers or {}):
        raise wrong("a header cannot be sent")
    content = body.encode() if isinstance(body, str) else body
    named = [(name, str(value).encode()) for name, value in (headers or {}).items()]
    received = host.current.send(host.Sent(method, url, named, content, timeout))
    found: dict[str, str] = {}
    for name, value in received.headers:
        found.setdefault(name.lower(), value.decode(errors="replace"))
    return Response(received.status, found, received.body)


__all__ = ["Response", "request"]
