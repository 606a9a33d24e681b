"""Subscribers that are placed by their ids: a coordinator, lanes and three gateways, all real.

They run in one process, but for Spark: a light router runs the lanes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from headgate import errors
from headgate.adapters.embedded.folder import DataFolder
from headgate.bench.rebalance.router import Join, LightRouter, Notes
from headgate.client.gateway_choice import MOST_STEPS, Way
from headgate.client.http import HttpClient
from headgate.client.producer import Producer
from headgate.client.subscriber import Event, Subscriber
from headgate.config import Config, load_config
from headgate.decide.planning.gateway_ring import Places
from headgate.demo.stage import PORTS
from headgate.model.api import TopicInfo
from headgate.model.client_messages import Redirect, decode_for_subscriber
from headgate.model.topology import GatewayRing
from headgate.services.gateway.service import Gateway
from headgate.wiring.control import addresses
from headgate.wiring.machine import plan_ports
from headgate.wiring.roles import build_coordinator, build_gateway, build_ingest, lane_settings
from tests.waiting import until

WAIT_S = 30.0
NAMES = ("gateway-0", "gateway-1", "gateway-2")
TOPIC = "flights"


@dataclass
class Cluster:
    config: Config
    folder: DataFolder
    gateways: dict[str, Gateway] = field(default_factory=dict)

    async def start_gateway(self, name: str) -> Gateway:
        public = self.config.public.model_copy(update={"port": 0, "ws_port": 0})
        own = self.config.gateway.model_copy(update={"client_port": 0})
        config = self.config.model_copy(
            update={"client_id": name, "public": public, "gateway": own}
        )
        gateway = build_gateway(config, self.folder)
        await gateway.start()
        self.gateways[name] = gateway
        return gateway

    async def kill(self, name: str) -> None:
        """Gone without a word to anybody, as a killed process is."""
        gateway = self.gateways.pop(name)
        session = gateway._session
        assert session is not None
        session._crew.cancel()  # type: ignore[attr-defined]  # no goodbye
        gateway._crew.cancel()
        for connection in tuple(gateway._websocket.connections):
            connection.abort()
        await gateway._stop_listening(0.0)

    @property
    def urls(self) -> list[str]:
        return [gateway.url for _, gateway in sorted(self.gateways.items())]

    def where(self, subscriber: Subscriber) -> str:
        """The gateway that has the subscriber."""
        [found] = [
            name
            for name, gateway in self.gateways.items()
            if any(one.id.startswith(f"{id_of(subscriber)}.") for one in gateway._subscriptions)
        ]
        return found

    async def all_placed(self, count: int) -> None:
        """Until every gateway knows of a ring of `count`."""
        for gateway in self.gateways.values():
            await until(lambda g=gateway: len(ring_of(g).gateways) == count, WAIT_S)  # type: ignore[misc]


def ring_of(gateway: Gateway) -> GatewayRing:
    return gateway._control.topology.ring or GatewayRing()


def id_of(subscriber: Subscriber) -> str:
    return subscriber._line.doors.subscriber_id


@asynccontextmanager
async def cluster(path: Path, mode: str = "consistent_hash") -> AsyncIterator[Cluster]:
    given: dict[str, object] = {"data": path, "routing.mode": mode, **dict.fromkeys(PORTS, 0)}
    loaded = load_config(command_line=given)
    config = plan_ports(loaded.config, loaded.origins)
    folder = DataFolder.open(path)
    made = Cluster(config, folder)
    async with AsyncExitStack() as stack:
        coordinator = build_coordinator(config, folder)
        await coordinator.start()
        stack.push_async_callback(coordinator.stop)
        ingest = build_ingest(config, folder)
        await ingest.start()
        stack.push_async_callback(ingest.stop)
        at = addresses(config.router.server_address, config.router.server_port)
        router = LightRouter(Join("router-1", at, str(path), lane_settings(config)), Notes())
        stack.push_async_callback(router.stop)
        for name in NAMES:
            await made.start_gateway(name)

        async def stop_gateways() -> None:
            for gateway in made.gateways.values():
                await gateway.stop()

        stack.push_async_callback(stop_gateways)
        await created(made.urls[0])
        yield made


async def created(url: str) -> None:
    async with HttpClient(url) as client, asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(errors.NotNow):
                body = {"name": TOPIC, "partitions": 2}
                await client.post("/v1/topics", body, TopicInfo)
                return
            await asyncio.sleep(0.1)


async def take(subscriber: Subscriber, count: int) -> list[int]:
    async with asyncio.timeout(WAIT_S):
        items = [await anext(subscriber) for _ in range(count)]
    assert all(isinstance(item, Event) for item in items), items
    return [item.document["n"] for item in items if isinstance(item, Event)]


async def produce(url: str, first: int, count: int) -> None:
    async with Producer(url) as producer:
        for n in range(first, first + count):
            await producer.send(TOPIC, {"n": n}, key="k")


async def test_every_subscriber_lands_where_the_ring_places_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as system, AsyncExitStack() as stack:
        await system.all_placed(3)
        ring = ring_of(system.gateways["gateway-0"])
        found = Counter[str]()
        for number in range(9):
            one = Subscriber(system.urls[0], TOPIC, id=f"subscriber-{number}")
            await stack.enter_async_context(one)
            assert system.where(one) == Places(ring).of(id_of(one))
            found[system.where(one)] += 1
        assert len(found) == 3, "or this shows nothing"


async def test_a_killed_gateways_subscribers_go_on_at_the_next_one_and_miss_nothing(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as system:
        await system.all_placed(3)
        subscriber = Subscriber(system.urls, TOPIC, retry_first_s=0.01)
        async with subscriber:
            first = system.where(subscriber)
            survivor = next(name for name in NAMES if name != first)
            await produce(system.gateways[survivor].url, 0, 5)
            assert await take(subscriber, 5) == [0, 1, 2, 3, 4]
            await system.kill(first)
            producing = asyncio.create_task(produce(system.gateways[survivor].url, 5, 20))
            assert await take(subscriber, 20) == list(range(5, 25))
            await producing
            # The dead one's lease lasts: it is still on the ring, and the next one was found.
            assert len(ring_of(system.gateways[survivor]).gateways) == 3
            expected = Places(GatewayRing(NAMES)).of(id_of(subscriber), avoiding={first})
            assert system.where(subscriber) == expected
            assert subscriber.reconnects == 1
            await produce(system.gateways[survivor].url, 25, 3)
            assert await take(subscriber, 3) == [25, 26, 27]


async def test_any_of_several_addresses_will_do(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"
    async with cluster(tmp_path, "direct") as system:
        for urls in ([nobody, system.urls[1]], f"{nobody}, {system.urls[1]}"):
            async with Subscriber(urls, TOPIC) as subscriber:
                assert subscriber.subscribed.topic == TOPIC
        with pytest.raises(errors.PeerUnreachable):
            async with Subscriber([nobody, nobody], TOPIC):
                raise AssertionError("nobody is there")


async def test_a_gateway_that_is_back_gets_newcomers_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as system:
        await system.all_placed(3)
        ring = GatewayRing(NAMES)
        name = next(n for i in range(50) if Places(ring).of(n := f"subscriber-{i}") == "gateway-2")
        gateway = system.gateways.pop("gateway-2")
        await gateway.stop()
        await system.all_placed(2)
        async with Subscriber(system.urls[0], TOPIC, id=name) as one:
            assert system.where(one) == Places(GatewayRing(NAMES[:2])).of(name)
        await system.start_gateway("gateway-2")
        await system.all_placed(3)
        async with Subscriber(system.urls[0], TOPIC, id=name) as one:
            assert system.where(one) == "gateway-2"


async def test_in_broadcast_mode_nothing_is_missed_or_repeated(tmp_path: Path) -> None:
    async with cluster(tmp_path, "broadcast") as system, AsyncExitStack() as stack:
        some = [
            await stack.enter_async_context(Subscriber(url, TOPIC, where=where))
            for url in system.urls
            for where in (None, "n % 2 == 0")
        ]
        await produce(system.urls[0], 0, 20)
        for subscriber in some[::2]:
            assert await take(subscriber, 20) == list(range(20))
        for subscriber in some[1::2]:
            assert await take(subscriber, 10) == list(range(0, 20, 2))
        for gateway in system.gateways.values():
            copies = gateway._deliveries.verdicts
            await until(lambda c=copies: c.total() == 20, WAIT_S)  # type: ignore[misc]


# --- the way in ------------------------------------------------------------------------------


def test_a_way_leads_to_where_it_is_sent_and_back_when_nobody_is_there() -> None:
    way = Way(["ws://a", "ws://b"], "me")
    assert way.url == "ws://a?v=1&id=me"
    way.redirected("ws://c", "gateway-c")
    assert way.door == "ws://c"
    way.failed(errors.PeerUnreachable("nobody"))
    assert way.url == "ws://a?v=1&id=me&unreachable=gateway-c"
    way.failed(errors.PeerUnreachable("nobody"))
    assert way.door == "ws://b"


def test_a_way_ends_when_there_is_nowhere_left_to_go() -> None:
    way = Way(["ws://a"], "me")
    with pytest.raises(errors.PeerUnreachable):
        way.failed(errors.PeerUnreachable("nobody"))


def test_gateways_that_disagree_are_asked_to_make_do() -> None:
    way = Way(["ws://a"], "me")
    way.redirected("ws://b", "gateway-b")
    way.redirected("ws://c", "gateway-c")
    way.redirected("ws://b", "gateway-b")
    assert way.url == "ws://c?v=1&id=me&unreachable=gateway-b"


def test_no_way_is_endless() -> None:
    way = Way(["ws://a"], "me")
    steps = 0
    with contextlib.suppress(errors.NotNow):
        while steps <= MOST_STEPS:
            way.redirected(f"ws://{steps}", f"gateway-{steps}")
            steps += 1
    assert steps == MOST_STEPS - 1


def test_a_redirect_keeps_its_place_in_the_protocol() -> None:
    raw = msgspec.json.encode({"type": "redirect", "url": "u", "gateway": "g", "id": "i", "x": 1})
    assert decode_for_subscriber(raw) == Redirect("u", "g", "i")
