"""What every connection of a subscriber or consumer promises at either end: ports/connection.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from headgate import errors
from headgate.adapters.memory.connections import MemoryConnections, MemoryListener
from headgate.adapters.picows.link import WsLink
from headgate.adapters.picows.server import PicowsListener
from headgate.ports.connection import (
    ConnectionListener,
    Link,
    OpenLink,
    Reception,
    Visit,
    Wire,
)

WAIT_S = 30.0
MESSAGE_BYTES = 1_000
LARGE = b"x" * 10_000


@dataclass
class Client:
    """Implements ports.connection.LinkListener; keeps what it is told, in order."""

    told: list[bytes | str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def opened(self, link: Link) -> None:
        self._tell("opened")

    def heard(self, message: bytes) -> None:
        self._tell(message)

    def lost(self) -> None:
        self._tell("lost")

    def _tell(self, what: bytes | str) -> None:
        self.told.append(what)
        self.news.set()


class Seat:
    """Implements ports.connection.Peer; keeps what it is told, in order."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.told: list[bytes | str] = []
        self.wire: Wire

    def connected(self, wire: Wire) -> None:
        self.wire = wire
        self.told.append("connected")
        wire.send(b"welcome")

    def heard(self, message: bytes) -> None:
        self.told.append(message)

    def paused(self) -> None:
        self.told.append("paused")

    def resumed(self) -> None:
        self.told.append("resumed")

    def leaving(self) -> None:
        self.told.append("leaving")

    def fail(self, error: errors.HeadgateError) -> None:
        self.told.append(error.code)
        self.wire.close(1008, error.message.encode())

    def disconnected(self) -> None:
        self.told.append("disconnected")


@dataclass
class Stage:
    """A gateway's listener, and clients that connect there."""

    listener: ConnectionListener
    open_link: OpenLink
    url: str = ""
    refusal: errors.HeadgateError | None = None
    seats: list[Seat] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    async def start(self) -> None:
        reception = Reception(self._admit, "headgate.v1", MESSAGE_BYTES)
        port = await self.listener.start(reception, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{port}"

    def link(self, client: Client | None = None, silence_s: float = 60.0) -> Link:
        self.links.append(self.open_link(client or Client(), silence_s))
        return self.links[-1]

    async def connected(self, silence_s: float = 60.0) -> tuple[Client, Link, Seat]:
        client = Client()
        link = self.link(client, silence_s)
        await link.connect(f"{self.url}/v1/subscribe?v=1")
        await until(lambda: b"welcome" in client.told)
        return client, link, self.seats[-1]

    async def stop(self) -> None:
        for link in self.links:
            link.abort()
            await link.wait_closed()
        await until(lambda: all(seat.told[-1] == "disconnected" for seat in self.seats))
        self.listener.stop()

    def _admit(self, visit: Visit) -> Seat:
        if self.refusal is not None:
            raise self.refusal
        self.seats.append(Seat(visit))
        return self.seats[-1]


def over_picows() -> Stage:
    return Stage(PicowsListener(), WsLink)


def in_memory() -> Stage:
    network = MemoryConnections()
    return Stage(MemoryListener(network), network.open_link)


@pytest.fixture(params=[over_picows, in_memory])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    made: Stage = request.param()
    await made.start()
    yield made
    await made.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - nothing signals these effects
            await asyncio.sleep(0.001)


def filled(seat: Seat) -> int:
    """Write until the wire holds as much as it should; returns how many messages that took."""
    sent = 0
    while "paused" not in seat.told:
        seat.wire.send(LARGE)
        sent += 1
        assert sent < 100_000, "it holds everything"
    return sent


async def test_who_connects_is_admitted_by_what_they_say(stage: Stage) -> None:
    client, _, seat = await stage.connected()
    assert (seat.visit.path, seat.visit.query) == ("/v1/subscribe", "v=1")
    assert seat.visit.host == stage.url.removeprefix("ws://")
    assert seat.told == ["connected"]
    assert client.told == ["opened", b"welcome"]


async def test_who_is_refused_has_no_connection(stage: Stage) -> None:
    stage.refusal = errors.NotFound("nothing is here")
    client = Client()
    with pytest.raises(errors.PeerUnreachable, match="no gateway takes subscribers"):
        await stage.link(client).connect(f"{stage.url}/v1/nowhere")
    assert not client.told
    assert not stage.seats


async def test_where_nobody_listens_is_no_gateway(stage: Stage) -> None:
    stage.listener.stop()
    with pytest.raises(errors.PeerUnreachable) as refused:
        await stage.link().connect(f"{stage.url}/v1/subscribe?v=1")
    assert refused.value.details["url"] == f"{stage.url}/v1/subscribe"


async def test_a_stopped_listener_leaves_its_connections(stage: Stage) -> None:
    client, _, seat = await stage.connected()
    stage.listener.stop()
    seat.wire.send(b"still here")
    await until(lambda: client.told[-1] == b"still here")


async def test_messages_arrive_whole_and_in_order_both_ways(stage: Stage) -> None:
    client, link, seat = await stage.connected()
    for number in range(300):
        seat.wire.send(b"%d" % number)
        link.send(b"%d" % number)
    expected = [b"%d" % number for number in range(300)]
    await until(lambda: len(client.told) == 302 and len(seat.told) == 301)
    assert client.told[2:] == seat.told[1:] == expected


async def test_nothing_is_told_within_a_call(stage: Stage) -> None:
    client, link, seat = await stage.connected()
    seat.wire.send(b"one")
    link.send(b"two")
    assert (client.told[-1], seat.told[-1]) == (b"welcome", "connected")


async def test_who_is_not_read_hears_that_it_is_too_much_and_when_there_is_room(
    stage: Stage,
) -> None:
    client, link, seat = await stage.connected()
    link.pause()
    sent = filled(seat)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert seat.wire.unsent_bytes > 0
    assert client.told == ["opened", b"welcome"], "it isn't read"
    assert "resumed" not in seat.told
    seat.wire.send(b"taken all the same")
    link.resume()
    await until(lambda: seat.told[-1] == "resumed")
    await until(lambda: client.told[-1] == b"taken all the same")
    assert client.told[2:-1] == [LARGE] * sent
    assert seat.told == ["connected", "paused", "resumed"]


async def test_a_client_that_reads_lets_nothing_wait(stage: Stage) -> None:
    client, _, seat = await stage.connected()
    for _ in range(200):
        seat.wire.send(LARGE)
        await asyncio.sleep(0)
        await until(lambda: not seat.wire.unsent_bytes)
    await until(lambda: client.told[2:] == [LARGE] * 200)
    assert seat.told == ["connected"]


async def test_a_gateway_that_stops_reading_hears_it_later(stage: Stage) -> None:
    _, link, seat = await stage.connected()
    seat.wire.stop_reading()
    link.send(b"one")
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert seat.told == ["connected"]
    link.send(b"two")
    seat.wire.read_on()
    await until(lambda: seat.told == ["connected", b"one", b"two"])


async def test_a_message_that_is_too_large_is_refused_with_a_sentence(stage: Stage) -> None:
    client, link, seat = await stage.connected()
    link.send(b"y" * (MESSAGE_BYTES + 1))
    await until(lambda: client.told[-1] == "lost")
    await until(lambda: seat.told[-1] == "disconnected")
    assert b"y" * (MESSAGE_BYTES + 1) not in seat.told
    link.send(b"nobody hears this")


async def test_who_leaves_in_good_manners_is_heard_to_the_end(stage: Stage) -> None:
    client, link, seat = await stage.connected()
    link.send(b"goodbye")
    link.close()
    await asyncio.wait_for(link.wait_closed(), WAIT_S)
    await until(lambda: seat.told[-1] == "disconnected")
    assert seat.told == ["connected", b"goodbye", "leaving", "disconnected"]
    seat.wire.send(b"too late")
    assert seat.wire.is_closing()
    assert client.told == ["opened", b"welcome"], "who leaves isn't told that it is over"


async def test_who_aborts_is_gone_at_once(stage: Stage) -> None:
    client, link, seat = await stage.connected()
    seat.wire.send(b"not heard")
    link.abort()
    await asyncio.wait_for(link.wait_closed(), WAIT_S)
    await until(lambda: seat.told[-1] == "disconnected")
    assert client.told == ["opened", b"welcome"]
    link.abort()
    link.close()


async def test_what_a_gateway_says_last_arrives_before_the_end(stage: Stage) -> None:
    client, _, seat = await stage.connected()
    for _ in range(100):
        seat.wire.send(LARGE)
    seat.wire.send(b"go elsewhere")
    seat.wire.close(1001, b"going away")
    assert seat.wire.is_closing()
    await until(lambda: client.told[-1] == "lost")
    assert client.told[2:] == [*[LARGE] * 100, b"go elsewhere", "lost"]
    await until(lambda: seat.told[-1] == "disconnected")


async def test_a_gateway_that_closes_hears_nothing_more(stage: Stage) -> None:
    client, link, seat = await stage.connected()
    seat.wire.close(1001, b"going away")
    link.send(b"nobody reads this")
    await until(lambda: client.told[-1] == "lost")
    await until(lambda: seat.told[-1] == "disconnected")
    assert seat.told == ["connected", "disconnected"]


async def test_a_gateway_that_aborts_waits_for_nobody(stage: Stage) -> None:
    client, link, seat = await stage.connected()
    link.pause()
    filled(seat)
    seat.wire.close(1001, b"going away")
    seat.wire.abort()
    await until(lambda: seat.told[-1] == "disconnected")
    assert "lost" not in client.told
    link.resume()
    await until(lambda: client.told[-1] == "lost")


async def test_silence_means_that_nobody_is_there(stage: Stage) -> None:
    client, _, seat = await stage.connected(silence_s=0.05)
    await until(lambda: client.told[-1] == "lost")
    await until(lambda: seat.told[-1] == "disconnected")


async def test_one_that_is_not_read_is_not_silent(stage: Stage) -> None:
    client, link, seat = await stage.connected(silence_s=0.05)
    link.pause()
    await asyncio.sleep(0.2)
    assert client.told == ["opened", b"welcome"]
    seat.wire.send(b"there")
    link.resume()
    await until(lambda: b"there" in client.told)


async def test_a_connection_that_is_not_wanted_any_more_ends_unseen(stage: Stage) -> None:
    client = Client()
    link = stage.link(client)
    connecting = asyncio.ensure_future(link.connect(f"{stage.url}/v1/subscribe"))
    await asyncio.sleep(0)
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    await until(lambda: all(seat.told[-1] == "disconnected" for seat in stage.seats))
    assert "opened" not in client.told or client.told == ["opened"]
    assert b"welcome" not in client.told
