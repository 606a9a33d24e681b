"""The gateway and the coordinator: registering, returning, topologies, fences, leaving."""

from __future__ import annotations

import asyncio

import pytest

from headgate import errors
from headgate.model.control.from_coordinator import AdoptionFloor, Refused
from headgate.model.control.reports import GatewayReport
from headgate.model.control.to_coordinator import AckTopology, Register, RegistrationComplete
from headgate.model.event import PartitionRef
from headgate.model.subscription import SlowSubscriber
from headgate.ports.log import Extent
from headgate.services.gateway import hearing
from headgate.services.gateway.subscriptions import registering, subscriptions
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.doubles import FakeCoordinator, topology
from tests.services.gateway.world import NODE, WAIT_S, World, running, until
from tests.written_log import TOPIC


async def test_hello_names_the_addresses_others_need(world: World) -> None:
    hello = world.coordinator.hellos[0]
    assert (hello.role, hello.node_id, hello.incarnation) == ("gateway", NODE, "incarnation-1")
    assert hello.url == world.gateway.delivery_url
    assert hello.ws_url == world.gateway.ws_url
    assert hello.pid > 0


async def test_topology_is_acknowledged_and_older_ones_are_ignored(world: World) -> None:
    world.coordinator.publish(topology(5, names=("flights", "ships")))
    world.coordinator.publish(topology(3, names=("flights",)))
    world.coordinator.publish(topology(6, names=("flights", "ships")))
    await until(lambda: AckTopology(6) in world.coordinator.received)
    assert world.coordinator.of_kind(AckTopology) == [
        AckTopology(1),
        AckTopology(5),
        AckTopology(6),
    ]
    subscriber = await world.websocket(topic="ships")
    assert (await subscriber.next())["type"] == "subscribed"


async def test_everything_is_registered_again_after_a_reconnection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registering, "CHUNK", 2)
    subscribers = [await world.websocket() for _ in range(5)]
    for one in subscribers:
        await one.next()
    ids = set(world.coordinator.registry)
    world.coordinator.disconnect()
    world.coordinator.registry.clear()
    world.coordinator.received.clear()
    subscribers.pop().leave()
    await asyncio.sleep(0.02)
    world.coordinator.connect()
    await until(lambda: RegistrationComplete() in world.coordinator.received)
    chunks = [
        message.subscriptions
        for message in world.coordinator.received
        if isinstance(message, Register)
    ]
    assert [len(chunk) for chunk in chunks] == [2, 2]
    assert set(world.coordinator.registry) < ids
    last_register = max(
        index
        for index, message in enumerate(world.coordinator.received)
        if isinstance(message, Register)
    )
    assert world.coordinator.received.index(RegistrationComplete()) > last_register
    await world.produce({"n": 1})
    for one in subscribers:
        assert await one.events(1) == [(0, 1)]


async def test_coordinator_away_existing_subscribers_go_on_and_new_ones_wait() -> None:
    bounds = Bounds(subscribe_timeout_s=0.2, topic_grace_s=0.05)
    async with running(bounds=bounds) as world:
        subscriber = await world.websocket()
        await subscriber.next()
        world.coordinator.disconnect()
        await world.produce({"n": 1})
        assert await subscriber.events(1) == [(0, 1)]
        late = await world.websocket()
        assert (await late.next())["error"]["code"] == "timeout"
        assert await late.closed() == 1013
        health = await (await world.client.get(f"{world.gateway.url}/health").build().send()).json()
        assert (health["role"], health["status"]) == ("gateway", "degraded")


async def test_subscribe_that_waits_survives_a_reconnection() -> None:
    coordinator = FakeCoordinator(adopting=False)
    async with running(coordinator=coordinator) as world:
        subscriber = await world.websocket()
        await until(lambda: bool(coordinator.registry))
        coordinator.disconnect()
        coordinator.registry.clear()
        # A coordinator that starts over: what it says first is about older revisions.
        coordinator.coordinator_id, coordinator.revision = "coordinator-2", 500
        coordinator.connect()
        await until(lambda: bool(coordinator.registry))
        assert coordinator.session is not None
        coordinator.session.push(AdoptionFloor(200))
        await asyncio.sleep(0.02)
        assert subscriber.messages.empty()
        coordinator.adopt()
        assert (await subscriber.next())["type"] == "subscribed"


async def test_adoption_under_an_earlier_coordinator_does_not_count(world: World) -> None:
    first = await world.websocket()
    await first.next()
    coordinator = world.coordinator
    coordinator.disconnect()
    coordinator.adopting, coordinator.revision = False, 10
    coordinator.registry.clear()
    coordinator.connect()
    late = await world.websocket()
    await until(lambda: len(coordinator.registry) == 2)
    await asyncio.sleep(0.05)
    assert late.messages.empty()
    coordinator.adopt()
    assert (await late.next())["type"] == "subscribed"


async def test_subscribers_of_one_that_is_refused_for_long_are_sent_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes send what is for them to whoever has its name; nobody would ever tell them."""
    subscriber, coordinator = await world.websocket(), world.coordinator
    await subscriber.next()
    assert coordinator.session is not None
    coordinator.session.push(Refused("another gateway named gateway-1 is connected"))
    await world.produce({"n": 1})
    assert await subscriber.events(1) == [(0, 1)], "it may have been a ghost of its own"
    monkeypatch.setattr(hearing, "GHOST_S", 0.0)
    coordinator.session.connect()
    coordinator.session.push(Refused("another gateway named gateway-1 is connected"))
    ended = await subscriber.next()
    assert ended["type"] == "error"
    assert "another gateway named gateway-1 is connected" in ended["error"]["message"]


@pytest.mark.parametrize("remembers", [True, False], ids=["resumed", "forgotten"])
async def test_what_lanes_released_meanwhile_is_read_from_the_log(
    world: World, remembers: bool
) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    world.coordinator.disconnect()
    # Forgotten, its subscription was dropped by the lanes, and they settled this record.
    released = world.log.append({"n": 1})
    world.lanes.cursor[next(iter(world.log.records))] = released.seq
    reads = world.log.reads
    world.coordinator.remembers = remembers
    world.coordinator.connect()
    if not remembers:
        assert await subscriber.events(1) == [(0, 1)]
    await world.produce({"n": 2})
    assert await subscriber.events(1) == [(0, 2)]
    assert (world.log.reads > reads) is not remembers


async def test_the_log_may_be_away_when_a_forgotten_gateway_returns(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    world.coordinator.disconnect()
    released = world.log.append({"n": 1})
    world.lanes.cursor[next(iter(world.log.records))] = released.seq
    world.log.failing = errors.StorageFailed("the disk is away")
    world.coordinator.remembers = False
    world.coordinator.connect()
    await asyncio.sleep(0.1)
    world.log.failing = None
    assert await subscriber.events(1) == [(0, 1)]


async def test_one_that_is_forgotten_again_before_the_log_is_back_trusts_nobody_too_early(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun after the first return would trust lanes that don't know of us yet."""
    monkeypatch.setattr(subscriptions, "AIM_RETRY_S", 0.0)
    subscriber, coordinator = await world.websocket(), world.coordinator
    await subscriber.next()
    partition = PartitionRef(TOPIC, 0)

    async def forgotten(*, adopted: bool) -> None:
        coordinator.disconnect()
        coordinator.registry.clear()
        coordinator.remembers, coordinator.adopting = False, adopted
        returns = len(coordinator.of_kind(RegistrationComplete))
        coordinator.connect()
        await until(lambda: len(coordinator.of_kind(RegistrationComplete)) > returns)

    world.lanes.cursor[partition] = world.log.append({"n": 1}).seq
    world.log.failing = errors.StorageFailed("the disk is away")
    await forgotten(adopted=True)
    await until(lambda: world.gateway._subscriptions._returning is not None)
    await forgotten(adopted=False)
    world.log.failing = None
    for _ in range(100):
        await asyncio.sleep(0)  # it would have looked at the log again by then
    world.lanes.cursor[partition] = world.log.append({"n": 2}).seq
    coordinator.adopt()
    assert await subscriber.events(2) == [(0, 1), (0, 2)]


async def test_one_that_is_forgotten_while_a_subscriber_looks_at_the_log_asks_for_it_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes knew of it, and don't any more when the log answers."""
    coordinator = world.coordinator
    looking, answers = asyncio.Event(), asyncio.Event()
    extent = world.log.extent

    async def slow(ref: PartitionRef) -> Extent:
        found = await extent(ref)
        if coordinator.registry:  # it is adopted by then
            looking.set()
            await answers.wait()
        return found

    monkeypatch.setattr(world.log, "extent", slow)
    coming = asyncio.create_task(world.websocket())
    await looking.wait()
    coordinator.disconnect()
    coordinator.registry.clear()
    world.lanes.cursor[PartitionRef(TOPIC, 0)] = world.log.append({"n": 1}).seq
    coordinator.remembers = False
    coordinator.connect()
    await until(lambda: bool(coordinator.registry))
    answers.set()
    subscriber = await coming
    assert (await subscriber.next())["type"] == "subscribed"
    assert await subscriber.events(1) == [(0, 1)]


async def test_the_first_delivery_after_a_return_does_not_hide_what_was_settled_meanwhile(
    world: World,
) -> None:
    """A lane that starts with us in its first snapshot delivers before the floor has moved."""
    subscriber = await world.websocket()
    await subscriber.next()
    world.coordinator.disconnect()
    world.log.append({"n": 1})
    second = world.log.append({"n": 2})
    world.lanes.cursor[next(iter(world.log.records))] = second.seq
    world.coordinator.remembers = world.coordinator.adopting = False
    registered = len(world.coordinator.of_kind(RegistrationComplete))
    world.coordinator.connect()
    await until(lambda: len(world.coordinator.of_kind(RegistrationComplete)) > registered)
    await world.produce({"n": 3})
    world.coordinator.adopt()
    assert await subscriber.events(3) == [(0, 1), (0, 2), (0, 3)]


async def test_records_that_passed_a_lane_before_it_knew_of_us_are_read_from_the_log(
    world: World,
) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    world.log.append({"n": 1})
    world.log.append({"n": 2})
    third = world.log.append({"n": 3})
    [subscription_id] = world.coordinator.registry
    late = world.lanes.delivery(third, (subscription_id,), since=2)
    assert (await world.lanes.deliver([late])).verdicts == ("accepted",)
    assert await subscriber.events(3) == [(0, 1), (0, 2), (0, 3)]
    fourth = world.log.append({"n": 4})
    await world.lanes.deliver([world.lanes.delivery(fourth, (subscription_id,), since=2)])
    assert await subscriber.events(1) == [(0, 4)]


async def test_a_refusal_by_the_coordinator_is_not_the_end(world: World) -> None:
    """Whoever has our name may be a ghost of ourselves; the session tries again."""
    assert world.coordinator.session is not None
    world.coordinator.session.push(Refused("another gateway named gateway-1 is connected"))
    await asyncio.sleep(0)  # it is heard before there is another connection
    world.coordinator.connect()
    subscriber = await world.websocket()
    assert (await subscriber.next())["type"] == "subscribed"


async def test_refused_registration_is_the_callers_error() -> None:
    coordinator = FakeCoordinator(refusing="too many subscriptions of this tenant")
    async with running(coordinator=coordinator) as world:
        subscriber = await world.websocket()
        error = (await subscriber.next())["error"]
        assert error["message"] == "too many subscriptions of this tenant"
        assert await subscriber.closed() == 1008


async def test_subscription_refused_after_a_return_is_closed(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    world.coordinator.disconnect()
    world.coordinator.refusing = "no longer allowed"
    world.coordinator.registry.clear()  # what it has, it doesn't refuse
    world.coordinator.connect()
    assert (await subscriber.next())["error"]["message"] == "no longer allowed"
    assert await subscriber.closed() == 1008


async def test_deleted_topic_ends_its_subscribers_and_no_others(world: World) -> None:
    world.coordinator.publish(topology(2, names=("flights", "ships")))
    ships = await world.websocket(topic="ships")
    await ships.next()
    flights = await world.websocket()
    await flights.next()
    async with world.sse(topic="ships") as stream:
        await stream.next()
        world.coordinator.publish(topology(3, deleted=("ships",)))
        assert (await ships.next())["error"]["code"] == "unknown_topic"
        assert await ships.closed() == 1008
        last = await stream.next()
        assert (last["event"], last["data"]["error"]["code"]) == ("error", "unknown_topic")
        assert await stream.ended()
    await world.produce({"n": 1})
    assert await flights.events(1) == [(0, 1)]
    await until(lambda: len(world.coordinator.registry) == 1)


async def test_topic_that_is_deleted_while_its_log_is_looked_at_is_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.coordinator.publish(topology(2, names=("flights", "ships")))
    await until(lambda: AckTopology(2) in world.coordinator.received)
    looking, answered = asyncio.Event(), asyncio.Event()
    extent = world.log.extent

    async def late(ref: PartitionRef) -> Extent:
        looking.set()
        await answered.wait()
        return await extent(ref)

    monkeypatch.setattr(world.log, "extent", late)
    subscriber = await world.websocket(topic="ships")
    await asyncio.wait_for(looking.wait(), WAIT_S)
    world.coordinator.publish(topology(3, deleted=("ships",)))
    await until(lambda: AckTopology(3) in world.coordinator.received)
    answered.set()
    assert (await subscriber.next())["error"]["code"] == "unknown_topic"
    assert not world.coordinator.registry


async def test_unknown_topic_may_be_a_new_one_while_the_coordinator_is_lost(world: World) -> None:
    world.coordinator.disconnect()
    early = await world.websocket(topic="ships")
    error = (await early.next())["error"]
    assert (error["code"], error["message"].count("lost the coordinator")) == ("unavailable", 1)
    world.coordinator.connect()
    world.coordinator.publish(topology(2, names=("flights", "ships")))
    late = await world.websocket(topic="ships")
    assert (await late.next())["type"] == "subscribed"


async def test_topic_that_is_merely_absent_keeps_its_subscribers(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    world.coordinator.publish(topology(2, names=()))
    await until(lambda: AckTopology(2) in world.coordinator.received)
    world.coordinator.publish(topology(3))
    await world.produce({"n": 1})
    assert await subscriber.events(1) == [(0, 1)]


async def test_reports_say_what_the_gateway_holds(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    await world.produce({"n": 1}, {"n": 2})
    await subscriber.events(2)
    await until(lambda: GatewayReport(1, 0, 2) in world.coordinator.received)


async def test_reports_count_the_subscribers_that_are_held_back(world: World) -> None:
    coordinator = world.coordinator
    for _ in range(2):
        await (await world.websocket()).next()
    coordinator.remembers = coordinator.adopting = False
    coordinator.disconnect()
    coordinator.connect()
    await until(lambda: GatewayReport(2, 0, 0, held=2) in coordinator.received)
    coordinator.adopt()
    await until(lambda: coordinator.of_kind(GatewayReport)[-1] == GatewayReport(2, 0, 0))


async def test_reports_name_who_does_not_keep_up() -> None:
    """And nobody any more once everybody has what waited."""
    bounds = Bounds(queue=10, subscribe_timeout_s=WAIT_S, topic_grace_s=0.05)
    async with running(bounds=bounds) as world:
        for number in range(1_000):
            world.log.append({"f": "x" * 50_000, "n": number})
        quick = await world.websocket()
        slow = await world.websocket(from_="earliest")
        await quick.next()
        name = (await slow.next())["subscription"]
        slow.stop_reading()

        def told() -> tuple[SlowSubscriber, ...]:
            reports = [one for one in world.coordinator.received if isinstance(one, GatewayReport)]
            return reports[-1].slowest if reports else ()

        await until(lambda: bool(told()))
        [one] = told()
        assert one == SlowSubscriber(name, "flights", one.waiting, catching_up=True)
        slow.read_on()
        await until(lambda: not told())


# --- deliveries ----------------------------------------------------------------------------------


async def test_lower_fences_are_refused_by_partition(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    lanes = world.lanes
    first, second = world.log.append({"n": 1}), world.log.append({"n": 2})
    other = world.log.append({"n": 3}, partition=1)
    ids = tuple(world.coordinator.registry)
    lanes.epoch, lanes.window, lanes.attempt = 2, 5, 1
    assert (await lanes.deliver([lanes.delivery(first, ids)])).verdicts == ("accepted",)
    for lanes.epoch, lanes.window, lanes.attempt in ((2, 5, 0), (2, 4, 9), (1, 9, 9)):
        answer = await lanes.deliver([lanes.delivery(second, ids)])
        assert answer.verdicts == ("stale_fence",)
    answer = await lanes.deliver([lanes.delivery(other, ids)])
    assert answer.verdicts == ("accepted",), "partitions have fences of their own"
    lanes.epoch, lanes.window, lanes.attempt = 2, 6, 0
    assert (await lanes.deliver([lanes.delivery(second, ids)])).verdicts == ("accepted",)
    assert sorted(await subscriber.events(3)) == [(0, 1), (0, 2), (1, 1)]


async def test_epochs_of_the_topology_fence_former_owners(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    record = world.log.append({"n": 1})
    ids = tuple(world.coordinator.registry)
    world.coordinator.publish(topology(2, epoch=7))
    await until(lambda: AckTopology(2) in world.coordinator.received)
    world.lanes.epoch = 6
    stale = await world.lanes.deliver([world.lanes.delivery(record, ids)])
    assert stale.verdicts == ("stale_fence",)
    world.lanes.epoch = 7
    fresh = await world.lanes.deliver([world.lanes.delivery(record, ids)])
    assert fresh.verdicts == ("accepted",)


async def test_verdicts_are_per_event_and_in_order(world: World) -> None:
    one = await world.websocket()
    one_id = (await one.next())["subscription"]
    two = await world.websocket()
    two_id = (await two.next())["subscription"]
    records = [world.log.append({"n": n}) for n in range(4)]
    make = world.lanes.delivery
    assert (await world.lanes.deliver([make(records[0], (one_id,))])).verdicts == ("accepted",)
    answer = await world.lanes.deliver(
        [
            make(records[0], (one_id,)),
            make(records[0], (one_id, two_id)),
            make(records[1], ("gone",)),
            make(records[2], ("gone", one_id)),
        ]
    )
    assert answer.verdicts == ("duplicate", "accepted", "no_subscriber", "accepted")
    assert await one.events(2) == [(0, 1), (0, 3)]
    assert await two.events(1) == [(0, 1)]


async def test_batch_for_another_gateway_is_refused_but_not_for_good(world: World) -> None:
    world.lanes.gateway_id = "gateway-9"
    with pytest.raises(errors.NotNow, match="this is gateway gateway-1, not gateway-9"):
        await world.lanes.deliver([])


async def test_garbage_instead_of_a_batch_is_refused(world: World) -> None:
    url = f"{world.gateway.delivery_url}/internal/v1/streamer/events"
    message = world.client.post(url).header("content-type", "application/json")
    answer = await message.body_bytes(b'{"gateway_id":').build().send()
    assert answer.status == 400


# --- leaving -------------------------------------------------------------------------------------


async def test_stop_tells_subscribers_and_ends_in_time() -> None:
    async with running() as world:
        subscriber, stalled = await world.websocket(), await world.websocket()
        await subscriber.next()
        await stalled.next()
        stalled.stop_reading()
        async with world.sse() as stream:
            await stream.next()
            await world.produce(*({"f": "x" * 10_000} for _ in range(1_000)))
            await subscriber.events(1_000)
            await stream.events(1_000)
            async with asyncio.timeout(WAIT_S):
                await world.gateway.stop()
            message = await subscriber.next()
            assert message["error"]["code"] == "unavailable"
            assert message["error"]["details"] == {"reason": "going_away"}
            assert await subscriber.closed() == 1001
            assert (await stream.next())["event"] == "error"
        assert world.coordinator.session is not None
        assert world.coordinator.session.closed
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(world.gateway.url.rsplit(":", 1)[1]))
