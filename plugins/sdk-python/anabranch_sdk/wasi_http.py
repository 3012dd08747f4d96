"""One request by `wasi:http`, of the host: only in a component that asks for it.

What is taken from the host is given back before what it came from: the host counts on it.
"""

from __future__ import annotations

from typing import Any

# Only where a component is made are these there.
from componentize_py_types import Err, Ok  # type: ignore[import-not-found]
from wit_world.imports import outgoing_handler, streams, wasi_http  # type: ignore[import-not-found]

from .failure import Failure
from .host import Received, Sent
from .outbound import failed, said, target, wrong, wrong_url

#: Bytes that one write may have, and one reading.
_WRITTEN = 4096
_READ = 1 << 16
_METHODS = {
    "GET": wasi_http.Method_Get,
    "HEAD": wasi_http.Method_Head,
    "POST": wasi_http.Method_Post,
    "PUT": wasi_http.Method_Put,
    "DELETE": wasi_http.Method_Delete,
    "CONNECT": wasi_http.Method_Connect,
    "OPTIONS": wasi_http.Method_Options,
    "TRACE": wasi_http.Method_Trace,
    "PATCH": wasi_http.Method_Patch,
}


def send(sent: Sent) -> Received:
    """Sends it, and waits for the whole answer."""
    nanoseconds = None if sent.timeout is None else int(sent.timeout * 1e9)
    outgoing = _request(sent)
    options = None
    if nanoseconds is not None:
        options = wasi_http.RequestOptions()
        options.set_first_byte_timeout(nanoseconds)
    body = outgoing.body()
    try:
        # It takes the request and the options, also where it refuses.
        future = outgoing_handler.handle(outgoing, options)
    except Err as error:
        with body:
            raise _failure(error.value) from None
    with future:
        # Who refuses it stops reading, and says why in the answer.
        unwritten = _write(body, sent.body)
        with future.subscribe() as ready:
            ready.block()
        got = future.get()
    if not isinstance(got, Ok):
        raise failed("there is no answer")
    if not isinstance(got.value, Ok):
        raise _failure(got.value.value)
    with got.value.value as incoming:
        if unwritten is not None:
            raise unwritten
        return _read(incoming)


def _request(sent: Sent) -> Any:
    secure, authority, path = target(sent.url)
    try:
        fields = wasi_http.Fields.from_list(sent.headers)
    except Err as error:
        raise wrong(f"a header cannot be sent: {_word(error.value)}") from None
    outgoing = wasi_http.OutgoingRequest(fields)
    known = _METHODS.get(sent.method.upper())
    try:
        outgoing.set_method(known() if known else wasi_http.Method_Other(sent.method))
    except Err:
        with outgoing:
            raise wrong("the method is no word that can be sent") from None
    try:
        outgoing.set_scheme(wasi_http.Scheme_Https() if secure else wasi_http.Scheme_Http())
        outgoing.set_authority(authority)
        outgoing.set_path_with_query(path)
    except Err:
        with outgoing:
            raise wrong_url(sent.url) from None
    return outgoing


def _write(body: Any, content: bytes) -> Failure | None:
    """Why not all of it was taken, if so."""
    try:
        with body.write() as stream:
            for at in range(0, len(content), _WRITTEN):
                stream.blocking_write_and_flush(content[at : at + _WRITTEN])
    except Err as error:
        with body:
            return _broken(error.value)
    try:
        wasi_http.OutgoingBody.finish(body, None)
    except Err as error:
        return _failure(error.value)
    return None


def _read(incoming: Any) -> Received:
    with incoming.headers() as fields:
        headers = fields.entries()
    content = bytearray()
    with incoming.consume() as body, body.stream() as stream:
        try:
            while True:
                content += stream.blocking_read(_READ)
        except Err as error:
            if not isinstance(error.value, streams.StreamError_Closed):
                raise _broken(error.value) from None
    return Received(incoming.status(), headers, bytes(content))


def _word(value: object) -> str:
    return type(value).__name__.rpartition("_")[2]


def _broken(error: Any) -> Failure:
    if isinstance(error, streams.StreamError_Closed):
        return failed("the connection was closed")
    if not isinstance(error, streams.StreamError_LastOperationFailed):
        return _failure(error)
    with error.value as reason:
        return said(reason.to_debug_string())


def _failure(error: Any) -> Failure:
    if isinstance(error, wasi_http.ErrorCode_InternalError):
        return said(error.value or "the request failed")
    if isinstance(error, wasi_http.ErrorCode_HttpRequestDenied):
        return Failure.fatal("http-denied", "the host denies requests")
    if isinstance(error, wasi_http.ErrorCode_HttpResponseTimeout | wasi_http.ErrorCode_ConnectionTimeout):
        return Failure.retry("http-timeout", "there was no answer in time")
    return failed(_word(error))
