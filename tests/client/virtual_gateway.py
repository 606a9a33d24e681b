"""The model gateway on virtual time: connections that take a moment, and nothing real between."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any, TypeVar

from headgate import errors
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.client.consumer import Consumer
from headgate.client.credentials import Credentials
from headgate.client.gateway_choice import Way
from headgate.client.identified_link import identified
from headgate.client.subscriber import Subscriber
from headgate.ports.connection import Link, LinkListener
from tests.client.model_gateway import Message, ModelGateway, Session, compact

LATENCY_S = 0.001
UNAUTHORIZED = b'{"type":"error","error":{"code":"unauthorized","message":"over","details":{}}}'

Client = TypeVar("Client", Subscriber, Consumer)


class VirtualGateway(ModelGateway):
    """With `asks_who`, whoever connects has to say a token, and to say another one soon."""

    def __init__(self, *, asks_who: bool = False) -> None:
        super().__init__()
        self.asks_who = asks_who
        self.renewals = 0
        self._tokens = 0
        """How many were given out; the last one alone is good."""
        self._ended = 0
        """Up to which one they are good no more."""
        self.links: set[VirtualLink] = set()
        """Those that are open, as far as the client is concerned."""
        self.doors: list[VirtualDoors] = []
        self.unreachable: set[str] = set()

    def is_left(self) -> bool:
        return not self.links and all(doors.is_closed for doors in self.doors)

    def served(self, client: Client) -> Client:
        """`client`, with this gateway instead of any address."""
        line = client._line
        doors = VirtualDoors()
        self.doors.append(doors)
        line.doors = doors  # type: ignore[assignment]
        line.open_link = self._open_link
        if self.asks_who:
            credentials = Credentials(self._next_token)
            line.open_link = identified(self._open_link, credentials, ScriptedMachine())
        return client

    async def _next_token(self) -> str:
        await asyncio.sleep(LATENCY_S)
        self._tokens += 1
        return str(self._tokens)

    def tokens_end(self) -> None:
        """All that were given out, and the connections with them."""
        self._ended = self._tokens
        for link in list(self.links):
            link.to_client(UNAUTHORIZED)
            link.to_client(None)

    def heard_token(self, link: VirtualLink, token: str, *, is_first: bool) -> None:
        if int(token) <= self._ended:
            link.to_client(UNAUTHORIZED)
            link.to_client(None)
            return
        self.renewals += not is_first
        now_ms = ScriptedMachine().wall_ms()
        link.to_client(compact({"type": "authenticated", "expires_at_ms": now_ms + 1}))

    def _open_link(self, listener: LinkListener, _silence_s: float) -> Link:
        return VirtualLink(listener, self)


class VirtualDoors:
    def __init__(self) -> None:
        self.is_closed = False

    async def way_in(self) -> Way:
        await asyncio.sleep(LATENCY_S)
        return Way(["ws://first", "ws://second"], "me")

    def refused(self, _door: str) -> None: ...

    async def close(self) -> None:
        await asyncio.sleep(LATENCY_S)
        self.is_closed = True


class VirtualLink:
    """Both ends of a connection; messages of each direction come in order, `LATENCY_S` later."""

    def __init__(self, listener: LinkListener, gateway: VirtualGateway) -> None:
        self.is_paused = False
        self._listener = listener
        self._gateway = gateway
        self._session: Session | None = None
        self._to_client: deque[bytes | None] = deque()
        self._to_gateway: deque[bytes | None] = deque()
        self._is_open = False
        self._is_known = False
        self._over = False
        self._gone = asyncio.Event()

    async def connect(self, url: str) -> None:
        try:
            await asyncio.sleep(LATENCY_S)
            if url.partition("?")[0] in self._gateway.unreachable:
                raise errors.PeerUnreachable("nobody is there")  # noqa: TRY301 - as the real one
            self._gateway.links.add(self)
            self._session = session = self._gateway.connect(_Wire(self))
            await asyncio.sleep(LATENCY_S)
            self._is_open = True
            self._listener.opened(self)
            if session.is_cut_off:
                self._lose()
                raise errors.PeerUnreachable("it closed the connection")  # noqa: TRY301 - see above
            self._deliver()
            await asyncio.sleep(0)
        except BaseException:
            self.abort()
            raise

    # --- for the client --------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        if not self._over:
            self._later(self._to_gateway, message)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._deliver()

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._later(self._to_gateway, None)

    def abort(self) -> None:
        if not self._gone.is_set():
            self._over = True
            asyncio.get_running_loop().call_soon(self._end)

    async def wait_closed(self) -> None:
        await self._gone.wait()

    # --- underneath ------------------------------------------------------------------------------

    def _later(self, queue: deque[bytes | None], message: bytes | None) -> None:
        queue.append(message)
        deliver = self._deliver if queue is self._to_client else self._collect
        asyncio.get_running_loop().call_later(LATENCY_S, deliver)

    def to_client(self, message: bytes | None) -> None:
        self._later(self._to_client, message)

    def _deliver(self) -> None:
        while self._is_open and self._to_client and not self.is_paused and not self._over:
            message = self._to_client.popleft()
            if message is None:
                self._lose()
            else:
                self._listener.heard(message)

    def _lose(self) -> None:
        self._over = True
        self._end()
        self._listener.lost()

    def _collect(self) -> None:
        while self._to_gateway and self._session is not None:
            message = self._to_gateway.popleft()
            if message is None:
                self._end()
            elif b'"auth"' in message:
                token = json.loads(message)["token"]
                self._gateway.heard_token(self, token, is_first=not self._is_known)
                self._is_known = True
            else:
                self._session.heard(json.loads(message))

    def _end(self) -> None:
        self._gone.set()
        self._gateway.links.discard(self)
        if self._session is not None:
            session, self._session = self._session, None
            session.gone()


class _Wire:
    """The gateway's end."""

    def __init__(self, link: VirtualLink) -> None:
        self._link = link

    def send(self, message: Message) -> None:
        self._link.to_client(compact(message))

    def drop(self) -> None:
        self._link.to_client(None)


def options(**given: Any) -> dict[str, Any]:
    """Pauses and names are the same in every run."""
    machine = ScriptedMachine()
    return {"retry_first_s": 0.01, "open_timeout_s": 5.0, "machine": machine, **given}
