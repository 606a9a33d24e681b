"""HTTP within this process: a call is answered by the application that listens at its address.

Between the two is what any network puts there: an address at which nobody may listen, an answer
that may take its time, a caller that waits no longer than it said, and a server that stops in
between. A request that nobody waits for any more is cancelled. One thread; a request is answered on
the listener's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from headgate import errors
from headgate.adapters.memory.crossing import Crossing
from headgate.model.addresses import reachable
from headgate.model.http import Answer, Headers, Receive, Request, Response, StreamResponse
from headgate.ports.http import App, HttpCalls

FIRST_PORT = 50_000


class MemoryWeb:
    """The listeners by address, shared by all callers."""

    def __init__(self) -> None:
        self.listening: dict[str, MemoryHttpListener] = {}
        self._ports = itertools.count(FIRST_PORT)

    def open_calls(self, *, connect_timeout_s: float = 0.0) -> HttpCalls:
        """Implements ports.http.OpenCalls."""
        return MemoryHttpCalls(self)

    def free_port(self) -> int:
        return next(self._ports)

    def gone(self, loop: asyncio.AbstractEventLoop) -> None:
        """Everything on `loop` is gone, without a word; its machine tells the callers that wait for
        it."""
        for url, listener in [*self.listening.items()]:
            if listener.crossing.loop is loop:
                del self.listening[url]
                listener.crossing.gone()


class MemoryHttpListener:
    """Implements ports.http.HttpListener."""

    def __init__(self, web: MemoryWeb) -> None:
        self._web = web
        self.crossing: Crossing
        self._app: App
        self._url = ""
        self._under_way: dict[asyncio.Timeout, None] = {}
        self._streams: dict[asyncio.Timeout, None] = {}
        self._changed = asyncio.Event()

    async def start(self, app: App, host: str, port: int, *, setting: str = "") -> int:
        port = port or self._web.free_port()
        url = f"http://{reachable(host, port)}"
        if url in self._web.listening:
            raise errors.PortInUse(
                f"port {port} on {host} is in use; stop what listens there or set {setting}"
            )
        self._app, self._url, self.crossing = app, url, Crossing()
        self._web.listening[url] = self
        return port

    async def failed(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, timeout_s: float) -> None:
        self._web.listening.pop(self._url, None)
        _cut(self._streams)
        try:
            async with asyncio.timeout(timeout_s):
                while self._under_way:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _cut(self._under_way)

    async def answer(self, request: Request) -> Response:
        """Raises OutcomeUnknown when this stops before the answer has left."""
        try:
            return await self.crossing.call(lambda: self._answer(request))
        except ConnectionResetError as error:
            raise errors.OutcomeUnknown(f"the connection to {self._url} ended") from error

    async def _answer(self, request: Request) -> Response:
        cut = asyncio.timeout(None)
        self._under_way[cut] = None
        try:
            async with cut:
                return await self._whole(await self._app.answer(request), cut)
        except TimeoutError as error:
            raise errors.OutcomeUnknown(f"the connection to {self._url} ended") from error
        finally:
            self._under_way.pop(cut, None)
            self._streams.pop(cut, None)
            self._changed.set()

    async def _whole(self, answer: Answer, cut: asyncio.Timeout) -> Response:
        if isinstance(answer, Response):
            media = {"content-type": answer.content_type} if answer.content_type else {}
            headers = _lowered({**answer.headers, **media})
            return Response(answer.status, answer.body, answer.content_type, headers)
        self._streams[cut] = None
        headers = _lowered(answer.headers)
        body = await _gathered(answer)
        return Response(answer.status, body, headers.get("content-type", ""), headers)


class MemoryHttpCalls:
    """Implements ports.http.HttpCalls."""

    def __init__(self, web: MemoryWeb) -> None:
        self._web = web
        self._under_way: dict[asyncio.Timeout, None] = {}
        self._closed = False

    async def send(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Response:
        scheme, _, rest = url.partition("://")
        host, _, target = rest.partition("/")
        path, _, query = target.partition("?")
        listener = self._web.listening.get(f"{scheme}://{host}")
        if listener is None or self._closed:
            raise errors.PeerUnreachable(f"nothing answers at {url}", url=url)
        length = [("content-length", str(len(body)))] if body else []
        found = Headers([("host", host), *headers, *length])
        request = Request.to(method, f"/{path}", query, receive_of(body), found)
        waiting = asyncio.timeout(timeout_s)
        self._under_way[waiting] = None
        try:
            async with waiting:
                return await listener.answer(request)
        except TimeoutError as error:
            if self._closed:
                raise errors.OutcomeUnknown(f"the connection to {url} ended", url=url) from error
            raise errors.Timeout(f"{url} gave no answer within {timeout_s:g} s", url=url) from error
        finally:
            self._under_way.pop(waiting, None)

    async def close(self) -> None:
        self._closed = True
        _cut(self._under_way)


def receive_of(body: bytes) -> Receive:
    """Where a body comes from that is there already; its client never goes."""
    parts = [body]

    async def receive() -> Mapping[str, Any]:
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    return receive


async def _gathered(answer: StreamResponse) -> bytes:
    try:
        return b"".join([chunk async for chunk in answer.chunks])
    finally:
        close = getattr(answer.chunks, "aclose", None)
        if close is not None:
            await close()


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _cut(calls: Iterable[asyncio.Timeout]) -> None:
    now_s = asyncio.get_running_loop().time()
    for call in calls:
        call.reschedule(now_s)
