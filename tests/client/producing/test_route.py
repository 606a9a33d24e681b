"""The routing cache of a producer: one fetch for many, pushes, acknowledgements, pruning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from headgate.adapters.memory.control import MemoryControlSession
from headgate.client.producing.connections import AVOID_S, Connections
from headgate.client.producing.route import CLOSE_TIMEOUT_S, Route
from headgate.errors import StaleVersion
from headgate.model.api import TopologyAnswer
from headgate.model.control.from_coordinator import FromCoordinator, PushTopology, Welcome
from headgate.model.control.to_coordinator import AckTopology, Goodbye, ToCoordinator
from headgate.ports.control import HelloSource
from tests.client.producing.produce_server import ProduceServer, produce_server
from tests.decide.produce.test_routing_cache import topology
from tests.virtual_time import run_virtual
from tests.waiting import until

WAIT_S = 30.0


class Stream:
    """The coordinator's side of a route's control stream; `sent` are the answers."""

    def __init__(self, address: str, hello: HelloSource) -> None:
        self.address = address
        self.sent: asyncio.Queue[ToCoordinator] = asyncio.Queue()
        self.on_send: Callable[[], None] = lambda: None
        self.session = MemoryControlSession(hello, self._hear)
        self.hello = self.session.connect()
        self.session.push(Welcome("c", 1_000, 1_000))

    def push(self, message: FromCoordinator) -> None:
        self.session.push(message)

    def _hear(self, message: ToCoordinator) -> None:
        if not isinstance(message, Goodbye):
            self.on_send()
            self.sent.put_nowait(message)


class Followed:
    """A route whose control stream the test drives."""

    def __init__(self, url: str) -> None:
        self.opened: asyncio.Queue[Stream] = asyncio.Queue()
        self.route = Route(url, open_session=self._open, follow_after_s=0.0)

    def _open(self, address: str, hello: HelloSource) -> MemoryControlSession:
        stream = Stream(address, hello)
        self.opened.put_nowait(stream)
        return stream.session

    async def stream(self) -> Stream:
        await self.route.learn("t")
        return await asyncio.wait_for(self.opened.get(), WAIT_S)


@pytest.fixture
async def server() -> AsyncIterator[ProduceServer]:
    async with produce_server() as running:
        running.topology = TopologyAnswer(topology(5, ["a", "b"]), "127.0.0.1:1")
        yield running


@pytest.fixture
async def followed(server: ProduceServer) -> AsyncIterator[Followed]:
    made = Followed(server.url)
    yield made
    await made.route.close()


def owners(route: Route) -> tuple[str, ...]:
    known = route.topic("t")
    assert known is not None
    return known.owners


async def test_everybody_who_asks_at_once_shares_one_answer(server: ProduceServer) -> None:
    route = Route(server.url, follow_after_s=WAIT_S)
    await asyncio.gather(*(route.learn("t") for _ in range(100)))
    assert owners(route) == ("http://a", "http://b")
    assert server.topology_requests == 1
    await route.close()


async def test_the_stream_goes_to_the_address_that_the_topology_came_with(
    followed: Followed,
) -> None:
    stream = await followed.stream()
    hello = stream.hello
    assert (stream.address, hello.role, hello.generation) == ("127.0.0.1:1", "client", 5)


async def test_a_push_is_applied_and_pruned_and_only_then_acknowledged(followed: Followed) -> None:
    stream, route = await followed.stream(), followed.route
    async with route.connections.to("http://a"):
        pass
    seen: list[tuple[tuple[str, ...], bool]] = []
    stream.on_send = lambda: seen.append((owners(route), "http://a" in route.connections))
    stream.push(PushTopology(topology(6, ["b", "c"])))
    assert await asyncio.wait_for(stream.sent.get(), WAIT_S) == AckTopology(6, ("t",))
    assert seen == [(("http://b", "http://c"), False)]


async def test_an_older_push_is_ignored_and_not_acknowledged(followed: Followed) -> None:
    stream = await followed.stream()
    stream.push(PushTopology(topology(4, ["x"])))
    stream.push(PushTopology(topology(6, ["c"])))
    assert await asyncio.wait_for(stream.sent.get(), WAIT_S) == AckTopology(6, ("t",))
    assert stream.sent.empty()
    assert owners(followed.route) == ("http://c",)


async def test_a_connection_to_a_departed_owner_is_closed_after_its_last_request() -> None:
    connections = Connections("http://127.0.0.1:1")
    async with connections.to("http://a") as client:
        closed: list[bool] = []
        close = client.close

        async def noted() -> None:
            closed.append(True)
            await close()

        client.close = noted  # type: ignore[method-assign]
        await connections.prune(["http://a"])
        assert ("http://a" in connections, closed) == (False, [])
    assert closed == [True]
    await connections.close()


def test_a_coordinator_that_does_not_let_go_keeps_no_connection_open() -> None:
    class Calls:
        is_open = True

        async def close(self) -> None:
            self.is_open = False

    class Stuck(MemoryControlSession):
        async def close(self, *, returns: bool = False) -> None:
            await asyncio.sleep(100.0)

    async def run() -> None:
        calls = Calls()
        route = Route("http://127.0.0.1:1", open_calls=lambda **_: cast("Any", calls))
        route._session = Stuck(route._hello, lambda _: None)
        await route.close()
        assert not calls.is_open
        assert asyncio.get_running_loop().time() <= CLOSE_TIMEOUT_S

    run_virtual(run())


async def test_while_it_is_followed_nobody_needs_to_ask(
    server: ProduceServer, followed: Followed
) -> None:
    await followed.stream()
    followed.route.unreachable("http://a")
    assert not followed.route.must_ask("t")
    assert not followed.route.must_ask("unknown")


async def test_without_a_stream_a_redirect_is_a_reason_to_ask_again(server: ProduceServer) -> None:
    route = Route(server.url, follow_after_s=WAIT_S)
    await route.learn("t")
    error = StaleVersion("moved", version=2, partitions=1, owners={"0": "http://c"})
    await route.redirected("t", "http://a", error)
    assert owners(route) == ("http://c",)
    route._ask_after_s = 0.0
    server.topology = TopologyAnswer(topology(6, ["d"], version=2))
    assert route.must_ask("t")
    route.refresh("t")
    async with asyncio.timeout(WAIT_S):
        await until(lambda: owners(route) == ("http://d",))
    assert not route.must_ask("t")
    await route.close()


@pytest.mark.parametrize(
    "details",
    [
        {"version": 1, "partitions": 2, "owners": {"0": "http://a", "1": "http://b"}},
        {"version": "new"},
        {},
    ],
    ids=["nothing new", "nonsense", "nothing"],
)
async def test_a_redirect_that_says_nothing_new_leads_to_the_public_address(
    server: ProduceServer, details: dict[str, object]
) -> None:
    route = Route(server.url, follow_after_s=WAIT_S)
    await route.learn("t")
    await route.redirected("t", "http://a", StaleVersion("stale", **details))
    assert route.connections.usable("http://a") == ""
    assert route.connections.usable("http://b") == "http://b"
    await route.close()


def test_an_address_without_an_answer_is_gone_around_for_a_while() -> None:
    async def scene() -> None:
        connections = Connections("http://127.0.0.1:1")
        connections.avoid("http://a")
        assert connections.usable("http://a") == ""
        await asyncio.sleep(AVOID_S)
        assert connections.usable("http://a") == "http://a"

    run_virtual(scene())


async def test_loopback_addresses_are_not_for_clients_from_elsewhere() -> None:
    route = Route("http://headgate.example")
    made = topology(1, ["a", "b"])
    local = made.nodes[0].__class__("a", "ingest", "http://127.0.0.1:7")
    await route._apply(made.__class__(1, made.topics, (local, made.nodes[1]), made.logs))
    assert owners(route) == ("", "http://b")
    await route.close()
