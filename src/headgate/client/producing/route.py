"""Keeps a producer's routing cache current: fetched on connect, then pushed, mended by redirects.

Invariants: a push is acknowledged after it took effect, never before, and an older one has none;
questions asked at once share one answer; without an answer, or without a control stream (a firewall
in between), everything still works, through the public address and by fetching again. Only who
begins with a topic waits for an answer: a coordinator that gives none holds nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec

from headgate import errors
from headgate.client.credentials import Credentials
from headgate.client.defaults import THIS_MACHINE, load_sessions, open_calls
from headgate.client.producing.connections import Connections
from headgate.decide.produce import routing_cache
from headgate.decide.produce.routing_cache import PUBLIC_ADDRESS, Applied, RoutingCache, TopicRoute
from headgate.model.api import TopologyAnswer
from headgate.model.control.from_coordinator import PushTopology, Refused
from headgate.model.control.to_coordinator import AckTopology, Hello
from headgate.model.topology import Topology
from headgate.ports.control import ControlSession
from headgate.ports.http import OpenCalls
from headgate.ports.machine import Machine
from headgate.tasks import Crew

ASK_TIMEOUT_S = 5.0
ASK_AGAIN_S = 5.0
"""The least time between two questions for the topology."""

FOLLOW_AFTER_S = 1.0
"""A producer that ends before this never opens a control stream: what it fetched is fresh."""

CLOSE_TIMEOUT_S = 3.0

OpenSession = Callable[[str, Callable[[], Hello]], ControlSession]


class _Redirect(msgspec.Struct):
    """The details of StaleVersion."""

    version: int
    partitions: int
    owners: dict[str, str]


class Route:
    def __init__(
        self,
        url: str,
        *,
        open_session: OpenSession | None = None,
        open_calls: OpenCalls = open_calls,
        follow_after_s: float = FOLLOW_AFTER_S,
        machine: Machine = THIS_MACHINE,
        credentials: Credentials | None = None,
    ) -> None:
        self._machine = machine
        self.connections = Connections(url, open_calls=open_calls, credentials=credentials)
        self.cache = RoutingCache()
        self._open_session = open_session
        self._follow_after_s = follow_after_s
        self._crew = Crew("producer")
        self._fetching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._session: ControlSession | None = None
        self._routed: set[str] = set()
        self._acknowledged = 0
        self._stale = False
        self._ask_after_s = 0.0
        self._id = f"client-{machine.token(16)}"

    # --- what is known ---------------------------------------------------------------------------

    def topic(self, name: str) -> TopicRoute | None:
        return self.cache.topics.get(name)

    def must_ask(self, topic: str) -> bool:
        """True when asking the coordinator may tell more about `topic` than is known."""
        if self._is_followed and not self.cache.is_cold:
            return False
        unknown = topic not in self.cache.topics
        return (unknown or self._stale) and _now_s() >= self._ask_after_s

    @property
    def _is_followed(self) -> bool:
        return self._session is not None and self._session.connected

    # --- fetching --------------------------------------------------------------------------------

    async def learn(self, topic: str) -> None:
        """What can be known of a topic that nothing was sent to yet."""
        if topic in self._routed:
            return
        self._routed.add(topic)
        await self._acknowledge()
        self.refresh(topic)
        if topic not in self.cache.topics and self._fetching is not None:
            await asyncio.wait([self._fetching])

    def refresh(self, topic: str) -> None:
        """Ask for the topology if that may help, for the sends after the answer is there."""
        if self.must_ask(topic):
            self.begin()

    def begin(self) -> None:
        """Everybody who wants to know shares the answer."""
        if self._fetching is None:
            self._fetching = self._crew.start("topology", self._fetch())
        elif self._fetching.done():
            # It died before it could say so; to ask again at once would be to ask for ever.
            self._fetching, self._ask_after_s = None, _now_s() + ASK_AGAIN_S

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answer = await self.connections.public.get("/v1/topology", TopologyAnswer)
            await self._apply(answer.topology)
            self._stale = False
            if self._following is None and answer.control:
                self._following = self._crew.start("following", self._follow(answer.control))
        except (errors.HeadgateError, TimeoutError):
            pass  # The public address knows the way, and there will be another occasion to ask.
        finally:
            self._ask_after_s = _now_s() + ASK_AGAIN_S
            self._fetching = None

    # --- pushes ----------------------------------------------------------------------------------

    async def _follow(self, control: str) -> None:
        if not self._is_reachable_from_here(f"//{control}"):
            return
        await asyncio.sleep(self._follow_after_s)
        if self._open_session is None:
            self._open_session = await self._machine.offload(load_sessions)
        self._session = session = self._open_session(control, self._hello)
        try:
            await self._take_in(session)
        except Exception:
            # The session looks alive; without it the next occasion to ask is taken.
            self._session = self._following = None
            self._stale = True
            await session.close()
            raise

    async def _take_in(self, session: ControlSession) -> None:
        async for message in session.messages():
            if isinstance(message, PushTopology):
                applied = await self._apply(message.topology)
                if applied.acknowledge is not None:
                    self._acknowledged = applied.acknowledge
                    await self._acknowledge()
            elif isinstance(message, Refused):
                return

    async def _acknowledge(self) -> None:
        """Tell the coordinator by which generation which topics are routed here."""
        if self._session is not None and self._acknowledged:
            await self._session.send(AckTopology(self._acknowledged, tuple(sorted(self._routed))))

    def _hello(self) -> Hello:
        return Hello(
            role="client",
            node_id=self._id,
            incarnation=self._id,
            generation=self.cache.generation,
        )

    async def _apply(self, topology: Topology) -> Applied:
        nodes = tuple(
            node
            if self._is_reachable_from_here(node.url)
            else msgspec.structs.replace(node, url="")
            for node in topology.nodes
        )
        visible = msgspec.structs.replace(topology, nodes=nodes)
        return await self._take_up(routing_cache.apply(self.cache, visible))

    async def _take_up(self, applied: Applied) -> Applied:
        self.cache = applied.cache
        await self.connections.prune(applied.departed)
        return applied

    # --- what went wrong -------------------------------------------------------------------------

    async def redirected(self, topic: str, url: str, error: errors.StaleVersion) -> None:
        """The node at `url` refused a version: go where it says.

        If that is nothing new, go through the public address; never to the same place again.
        """
        before = self.cache
        with contextlib.suppress(msgspec.ValidationError):
            said = msgspec.convert(error.details, _Redirect)
            owners = tuple(
                self._visible(said.owners.get(str(number), PUBLIC_ADDRESS))
                for number in range(said.partitions)
            )
            await self._take_up(
                routing_cache.redirected(self.cache, topic, version=said.version, owners=owners)
            )
        self._stale = True
        if self.cache is before and url != PUBLIC_ADDRESS:
            self.connections.avoid(url)

    def unreachable(self, url: str) -> None:
        """The node at `url` gave no answer."""
        if url != PUBLIC_ADDRESS:
            self._stale = True
            self.connections.avoid(url)

    async def close(self) -> None:
        """Within `CLOSE_TIMEOUT_S`, even if a node doesn't answer; then the connections, in any
        case."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._crew.close()
                    if self._session is not None:
                        await self._session.close()
        finally:
            await self.connections.close()

    def _visible(self, url: str) -> str:
        return url if self._is_reachable_from_here(url) else PUBLIC_ADDRESS

    def _is_reachable_from_here(self, url: str) -> bool:
        """A loopback address means another machine to a client that came from outside."""
        return not _is_loopback(url) or _is_loopback(self.connections.public.url)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
