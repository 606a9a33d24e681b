"""Connections between real clients and real gateways, on virtual time.

A link carries what the two write to each other, as bytes, and a tap sees all of it. Links can be
frozen (nothing passes, in either direction, until they thaw), held by a gateway that stands still,
and cut; one whose client vanished without a word is only noticed by the gateway's pings. What a
full socket does to whoever writes isn't modelled: the bounds of a group leave nothing that would
fill one.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Protocol

from headgate import errors
from headgate.adapters.picows.server import PingTimes
from headgate.client.gateway_choice import Way
from headgate.ports.connection import LinkListener
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.groups.connection import ConsumerConnection
from headgate.services.gateway.websocket import CONSUME_PATH, WebSocketServer
from tests.client.virtual_gateway import VirtualDoors, VirtualLink

PINGS = PingTimes()


class Tap(Protocol):
    """Whoever listens to what passes a link of `member`."""

    def to_client(self, link: GroupLink, message: dict[str, Any]) -> None:
        """The gateway has written it."""

    def arrived(self, link: GroupLink, message: dict[str, Any]) -> None:
        """The client has it."""

    def to_gateway(self, link: GroupLink, message: dict[str, Any]) -> None:
        """The gateway has it."""

    def ended(self, link: GroupLink) -> None:
        """One of the two has found that it is over."""


class Network:
    """Which gateway is at which address."""

    def __init__(self, chance: random.Random, tap: Tap) -> None:
        self.chance = chance
        self.tap = tap
        self.servers: dict[str, Entrance] = {}
        self.links = Links()

    def listen(self, url: str, node_id: str, server: WebSocketServer) -> Entrance:
        self.servers[url] = entrance = Entrance(self, node_id, server)
        return entrance

    def links_of(self, member: str) -> list[GroupLink]:
        return [link for link in self.links if link.member == member]


class Links(dict[Any, None]):
    """A set of those that are open, in the order in which they came."""

    def add(self, link: Any) -> None:
        self[link] = None

    def discard(self, link: Any) -> None:
        self.pop(link, None)


class Entrance:
    """One gateway, for links that come in; implements what VirtualLink wants of a gateway."""

    def __init__(self, network: Network, node_id: str, server: WebSocketServer) -> None:
        self.node_id = node_id
        self.links = network.links
        self.unreachable: frozenset[str] = frozenset()
        self._server = server

    def connect(self, wire: Any) -> GatewaySide:
        return GatewaySide(wire._link, self._server._consumer_connection("v=1", Entry()))


class GroupDoors(VirtualDoors):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    async def way_in(self) -> Way:
        await asyncio.sleep(0.001)
        urls = list(self._network.servers)
        if not urls:
            raise errors.NotNow("no gateway takes subscribers at the moment; try again")
        self._network.chance.shuffle(urls)
        return Way(urls, "me")


class GroupLink(VirtualLink):
    def __init__(self, listener: LinkListener, network: Network, member: str) -> None:
        super().__init__(listener, None)  # type: ignore[arg-type]  # found when it connects
        self.member = member
        self.node_id = ""
        self.is_frozen = False
        self.is_held = False
        self._network = network
        self._pinging: asyncio.TimerHandle | None = None

    async def connect(self, url: str) -> None:
        entrance = self._network.servers.get(url.partition("?")[0].removesuffix(CONSUME_PATH))
        if entrance is None:
            await asyncio.sleep(0.001)
            raise errors.PeerUnreachable("nobody is there")
        self._gateway = entrance  # type: ignore[assignment]  # as far as links are concerned
        self.node_id = entrance.node_id
        await super().connect(url)

    # --- faults ----------------------------------------------------------------------------------

    def freeze(self) -> None:
        self.is_frozen = True
        self._expect_no_pong()

    def thaw(self) -> None:
        self.is_frozen = False
        if self._pinging is not None:
            self._pinging.cancel()
        self._collect()
        self._deliver()

    def hold(self, *, is_held: bool) -> None:
        """The gateway stands still: it doesn't ping either."""
        self.is_held = is_held
        if self._session is not None:
            self._session.hold(is_held=is_held)  # type: ignore[attr-defined]  # a GatewaySide
        self._collect()
        self._deliver()

    def vanish(self) -> None:
        """The client's machine is gone: nobody says so."""
        self._over = True
        self._gone.set()
        self._to_gateway.clear()
        self._expect_no_pong()

    def cut(self) -> None:
        """The gateway's side is over at once, the client hears of it when it can."""
        session, self._session = self._session, None
        if session is not None:
            session.gone()
            self._network.tap.ended(self)
        if self._over:
            self._end()
        else:
            self.to_client(None)

    def close(self) -> None:
        """At once where the other side is over already, and nothing tells: it stood still."""
        super().close()
        if self._is_open and self._session is None:
            self._end()

    def _expect_no_pong(self) -> None:
        within_s = PINGS.timeout_s + self._network.chance.uniform(0.0, PINGS.after_idle_s)
        self._pinging = asyncio.get_running_loop().call_later(within_s, self.cut)

    # --- what passes -----------------------------------------------------------------------------

    def written(self, message: bytes) -> None:
        """By the gateway."""
        self._network.tap.to_client(self, json.loads(message))
        self.to_client(message)

    def _deliver(self) -> None:
        while self._may_deliver():
            message = self._to_client.popleft()
            if message is None:
                self._lose()
            else:
                self._network.tap.arrived(self, json.loads(message))
                self._listener.heard(message)

    def _may_deliver(self) -> bool:
        is_open = self._is_open and not self._over and not self.is_frozen and not self.is_held
        return is_open and bool(self._to_client) and not self.is_paused

    def _collect(self) -> None:
        if not self.is_frozen and not self.is_held:
            super()._collect()

    def _end(self) -> None:
        had_session = self._session is not None
        super()._end()
        if self._pinging is not None:
            self._pinging.cancel()
        if had_session:
            self._network.tap.ended(self)

    def heard(self, message: dict[str, Any]) -> None:
        self._network.tap.to_gateway(self, message)


class GatewaySide:
    """The gateway's end of a link: a session as VirtualLink has it, and the wire that the real
    connection writes to (ports.connection.Wire), which is full while it is held."""

    is_cut_off = False
    peer_address = ""
    unsent_bytes = 0

    def __init__(self, link: GroupLink, connection: ConsumerConnection) -> None:
        self._link = link
        self._connection = connection
        self._is_over = False
        connection.connected(self)

    # --- for the link ----------------------------------------------------------------------------

    def heard(self, message: dict[str, Any]) -> None:
        self._link.heard(message)
        self._connection.heard(json.dumps(message).encode())

    def gone(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._connection.disconnected()

    def hold(self, *, is_held: bool) -> None:
        if is_held:
            self._connection.paused()
        else:
            self._connection.resumed()

    # --- for the connection ----------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        if not self._is_over:
            self._link.written(bytes(message))

    def is_closing(self) -> bool:
        return self._is_over

    def stop_reading(self) -> None: ...

    def read_on(self) -> None: ...

    def close(self, code: int, reason: bytes) -> None:
        self._link.to_client(None)

    def abort(self) -> None:
        self._link.cut()
