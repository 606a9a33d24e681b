"""An application as ASGI, which is what granian serves.

ASGI, because granian applies the client's backpressure to an ASGI send and not to an RSGI one (a
stalled reader would fill the memory). It resets a connection whose request was answered and not
read: so what is still arriving then is read and dropped for a while before a refusal is sent, or it
would be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from headgate.model.http import Headers, Receive, Request, Response, StreamResponse
from headgate.ports.http import App
from headgate.tasks import first_of

log = logging.getLogger(__name__)

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
DROPPED_FROM_BYTES = 64 * 1024
"""What is less lies in the buffers of the two machines."""
DROP_BYTES = 32 * 1024 * 1024
DROP_S = 2.0


class AsgiApp:
    """`app` as granian calls it, with what is under way there."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._requests: set[asyncio.Task[Any]] = set()
        self._streams: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected scope {scope['type']}")
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            request = _request(scope, receive)
            if _may_be_large(request):
                arriving = _Arriving(receive)
                await self._serve(
                    msgspec.structs.replace(request, receive=arriving), send, arriving
                )
            else:
                await self._serve(request, send)
        except asyncio.CancelledError:
            # `drain` cancels what outlives the server; the connection ends with it.
            task.uncancel()
        finally:
            self._requests.discard(task)
            self._streams.discard(task)

    async def _serve(self, request: Request, send: Send, arriving: _Arriving | None = None) -> None:
        answer = await self._app.answer(request)
        try:
            if arriving is not None:
                await arriving.drop()
            if isinstance(answer, StreamResponse):
                await self._stream(request, answer, send)
            else:
                await _send_whole(answer, send)
        except (RuntimeError, OSError):
            # The client left while it was answered; there is nobody to tell.
            log.debug("client left %s %s", request.method, request.path)

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


class _Arriving:
    """Where a large body comes from, and whether all of it has come."""

    __slots__ = ("_receive", "is_whole")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_whole = False

    async def __call__(self) -> Mapping[str, Any]:
        message = await self._receive()
        if not message.get("more_body", False):
            self.is_whole = True  # or nothing more comes, because the client has gone
        return message

    async def drop(self) -> None:
        """What nobody has read."""
        left_bytes = DROP_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROP_S):
                while not self.is_whole and left_bytes > 0:
                    left_bytes -= len((await self()).get("body", b""))


def _may_be_large(request: Request) -> bool:
    declared = request.headers.get("content-length")
    if declared.isdigit():
        return int(declared) > DROPPED_FROM_BYTES
    return request.method in ("POST", "PUT", "PATCH")


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
        peer=str(scope["client"][0]) if scope.get("client") else "",
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
