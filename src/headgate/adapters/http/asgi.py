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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from headgate import errors
from headgate.adapters.http.resting import Patience, Peer
from headgate.model.http import (
    Headers,
    Receive,
    Request,
    Response,
    StreamResponse,
    error_response,
)
from headgate.ports.http import App
from headgate.tasks import first_of

log = logging.getLogger(__name__)

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
BODILESS_METHODS = ("GET", "HEAD", "OPTIONS")
GONE: Mapping[str, Any] = {"type": "http.disconnect"}
TOO_LATE = errors.Timeout("the request took too long to arrive; send it again")
DROPPED_FROM_BYTES = 64 * 1024
"""What is less lies in the buffers of the two machines."""
DROP_BYTES = 32 * 1024 * 1024
DROP_S = 2.0
CHUNKS_AT_ONCE = 16
"""Of an answer in pieces, before others have a turn."""


class AsgiApp:
    """`app` as granian calls it, with what is under way there."""

    def __init__(self, app: App, patience: Patience | None = None) -> None:
        self._app = app
        self._patience = patience or Patience()
        self._requests: dict[asyncio.Task[Any], Sequence[str]] = {}
        """With the address and the port that each comes from, as far as they are known."""
        self._streams: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected scope {scope['type']}")
        task = asyncio.current_task()
        assert task is not None
        self._requests[task] = scope.get("client") or ()
        try:
            request = _request(scope, receive)
            if request.method in BODILESS_METHODS and not _may_be_large(request):
                await self._serve(request, send)
            else:
                arriving = _Arriving(receive, self._patience)
                await self._serve(
                    msgspec.structs.replace(request, receive=arriving), send, arriving
                )
        except asyncio.CancelledError:
            # `drain` cancels what outlives the server; the connection ends with it.
            task.uncancel()
        finally:
            del self._requests[task]
            self._streams.discard(task)

    def answered(self) -> set[Peer]:
        """The other ends of connections of which a request is being answered."""
        return {(peer[0], int(peer[1])) for peer in self._requests.values() if peer}

    async def _serve(self, request: Request, send: Send, arriving: _Arriving | None = None) -> None:
        answer = await self._app.answer(request)
        try:
            if arriving is not None and arriving.is_late:
                answer = msgspec.structs.replace(error_response(TOO_LATE), status=408)
            elif arriving is not None and _may_be_large(request):
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
    """Where a body comes from, and whether all of it has come. To the reader of the body, a client
    that takes too long for it has gone."""

    __slots__ = ("_bytes", "_loop", "_patience", "_receive", "_since_s", "is_late", "is_whole")

    def __init__(self, receive: Receive, patience: Patience) -> None:
        self._receive = receive
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()
        self._bytes = 0
        self.is_whole = self.is_late = False

    async def __call__(self) -> Mapping[str, Any]:
        if self.is_whole:  # what comes now is that the client has gone, whenever that is
            return GONE if self.is_late else await self._receive()
        try:
            async with asyncio.timeout_at(self._until_s()):
                message = await self._receive()
        except TimeoutError:
            self.is_whole = self.is_late = True
            return GONE
        self._bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self.is_whole = True  # or nothing more comes, because the client has gone
        return message

    def _until_s(self) -> float:
        """When more must have come: soon, and as much as is worth waiting for."""
        stall_s = self._patience.stall_s
        slow_s = stall_s + self._bytes / self._patience.bytes_per_s
        return min(self._loop.time() + stall_s, self._since_s + slow_s)

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
    """To a client that has left granian sends at once, without a word: what waits for nothing
    either would go on for ever, and nobody else had a turn."""
    number = 0
    async for chunk in answer.chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        number += 1
        if number % CHUNKS_AT_ONCE == 0:
            await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
