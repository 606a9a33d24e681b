"""The HTTP application: finds the route, calls its handler, and turns every outcome into an answer.

Invariant: each request is answered exactly once, errors with the documented body; a traceback goes
to the log and never to the client; no handler is called for a web page that may not call. It
speaks ASGI, because granian applies the client's
backpressure to an ASGI send and not to an RSGI one (a stalled reader would fill the memory).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from headgate import errors
from headgate.adapters.http.messages import (
    Answer,
    Headers,
    Receive,
    Request,
    Response,
    Route,
    StreamResponse,
    encode_json,
    error_response,
    json_response,
)
from headgate.adapters.http.web_pages import check_body, is_preflight, leave, preflight, refusal_of
from headgate.decide.web_pages import WebPages
from headgate.tasks import first_of

__all__ = ["HttpApp", "Request", "Response", "Route", "StreamResponse", "json_response"]

log = logging.getLogger(__name__)

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class HttpApp:
    """An ASGI application over a fixed route table. `pages` may call it, besides programs."""

    def __init__(self, routes: Iterable[Route], pages: WebPages | None = None) -> None:
        self.routes = tuple(routes)
        self._pages = pages or WebPages()
        self._table = [(_pattern(route.path), route) for route in self.routes]
        self._requests: set[asyncio.Task[Any]] = set()
        self._streams: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected scope {scope['type']}")
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            await self._serve(_request(scope, receive), send)
        except asyncio.CancelledError:
            # `drain` cancels what outlives the server; the connection ends with it.
            task.uncancel()
        finally:
            self._requests.discard(task)
            self._streams.discard(task)

    async def _serve(self, request: Request, send: Send) -> None:
        answer = await self.answer(request)
        try:
            if isinstance(answer, StreamResponse):
                await self._stream(request, answer, send)
            else:
                await _send_whole(answer, send)
        except (RuntimeError, OSError):
            # The client left while it was answered; there is nobody to tell.
            log.debug("client left %s %s", request.method, request.path)

    async def answer(self, request: Request) -> Answer:
        """The answer to `request`, whatever happens."""
        answer: Answer
        try:
            answer = await self._find_route(request).handler(request)
        except _MethodNotAllowed as refusal:
            asked = is_preflight(request)
            answer = preflight(request, refusal.allowed) if asked else refusal.response
        except errors.HeadgateError as error:
            if error.status >= 500 and not isinstance(error, errors.NotNow):
                log.warning("%s %s failed: %s", request.method, request.path, error)
            answer = error_response(error)
        except msgspec.DecodeError as error:
            answer = error_response(errors.InvalidRequest(f"the request is not valid: {error}"))
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            answer = error_response(
                errors.HeadgateError("something went wrong inside the server; its log says what")
            )
        if request.headers.get("origin"):
            answer.headers.update(leave(self._pages, request))
        return answer

    def _find_route(self, request: Request) -> Route:
        """The route of `request`, which learns its params; raises where there is none, or none for
        a page like this or a body like this."""
        refusal = refusal_of(self._pages, request)
        if refusal is not None:
            raise refusal
        allowed: set[str] = set()
        for pattern, route in self._table:
            match = pattern.fullmatch(request.path)
            if match is None:
                continue
            if route.method == request.method:
                check_body(request, route)
                request.params = match.groupdict()
                return route
            allowed.add(route.method)
        if allowed:
            raise _MethodNotAllowed(request, allowed)
        raise errors.NotFound(f"there is no {request.path} here; /openapi.json lists what there is")

    async def _stream(self, request: Request, answer: StreamResponse, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await send(_start(answer.status, answer.headers))
            await first_of(_pump(answer, send), request.disconnected())
        finally:
            close = getattr(answer.chunks, "aclose", None)
            if close is not None:
                await close()

    async def drain(self, timeout_s: float) -> None:
        """End streams now, give everything else `timeout_s`, then cancel what is left."""
        for task in tuple(self._streams):
            task.cancel()
        if self._requests:
            await asyncio.wait(tuple(self._requests), timeout=timeout_s)
        for task in tuple(self._requests):
            task.cancel()


class _MethodNotAllowed(errors.HeadgateError):
    def __init__(self, request: Request, allowed: set[str]) -> None:
        super().__init__("this method isn't allowed here")
        self.allowed = allowed
        methods = ", ".join(sorted(allowed))
        message = f"{request.path} does not take {request.method}; use {methods}"
        body = {"error": {"code": "method_not_allowed", "message": message, "details": {}}}
        self.response = Response(405, encode_json(body), headers={"allow": methods})


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    regex = "".join(
        f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )
    return re.compile(regex)


def _request(scope: Mapping[str, Any], receive: Receive) -> Request:
    return Request(
        scope["method"],
        scope["path"],
        receive=receive,
        raw_path=scope["raw_path"].decode("latin-1"),
        query_string=scope["query_string"].decode("latin-1"),
        headers=Headers(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ),
    )


def _start(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    pairs = [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
    ]
    return {"type": "http.response.start", "status": status, "headers": pairs}


async def _send_whole(answer: Response, send: Send) -> None:
    headers = (
        {"content-type": answer.content_type, **answer.headers}
        if answer.content_type
        else {**answer.headers}
    )
    await send(_start(answer.status, headers))
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


async def _pump(answer: StreamResponse, send: Send) -> None:
    async for chunk in answer.chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
