"""What a consumer fails with is blamed once, and only where nothing else can be the reason."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from headgate.errors import NotNow
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Tally, Tries
from headgate.services.gateway.groups.bounds import ConsumerBounds
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.gateway.groups.test_consumers import ack, assigned, commit, committed, join
from tests.services.gateway.groups.test_giving_up import (
    NAME,
    given_up,
    is_silent,
    key_of,
    limited,
    nack,
)
from tests.services.gateway.world import WsSubscriber, until


async def process(socket: WsSubscriber, count: int) -> list[int]:
    """The seqs of the next ones, each acknowledged before the one after it."""
    seqs: list[int] = []
    for _ in range(count):
        message = await socket.next()
        seqs.append(message["seq"])
        ack(socket, message)
    return seqs


async def test_a_lower_limit_gives_up_nothing_that_was_merely_there() -> None:
    async with limited() as group:
        await group.produce(20)
        for _ in range(2):
            socket = await group.consumer(limit=5)
            for _ in range(20):
                await socket.next()
            await group.dies(socket)
        socket = await group.consumer(limit=2)
        assert await process(socket, 20) == list(range(1, 21))
        assert not await group.all_letters()


async def test_a_consumer_that_dies_while_nobody_works_on_what_it_nacked_has_failed_once() -> None:
    async with limited() as group:
        socket = await group.consumer(limit=2)
        await group.produce(1)
        nack(socket, await socket.next(), 1)
        assert await is_silent(socket)
        await group.dies(socket)
        socket = await group.consumer(limit=2)
        assert (await socket.next())["deliveries"] == 2
        assert not await group.all_letters()


async def test_what_is_kept_back_does_not_count_against_itself() -> None:
    """It waits to be alone, which it is once nothing else is in hand, however large it is."""
    async with limited(consumers=ConsumerBounds(in_hand_bytes=1_000, save_s=0.02)) as group:
        socket = await group.consumer(limit=2)
        for text in ("x", "x" * 10_000):
            group.world.log.append({"text": text}, partition=0, key=key_of(0))
        await group.world.lanes.run()
        _, large = await socket.next(), await socket.next()
        nack(socket, large, 1)
        assert await is_silent(socket)
        await group.dies(socket)
        socket = await group.consumer(limit=2)
        assert await process(socket, 2) == [1, 2]


class SlowNotes(FaultyCheckpoints):
    """Who notes what was tried has to wait for the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = 0

    async def note_tries(self, ref: PartitionRef, fence: Fence, tried: Tries) -> None:
        self.waiting += 1
        await self.gate.wait()
        await super().note_tries(ref, fence, tried)


async def test_who_had_its_time_and_is_lost_then_has_failed_once() -> None:
    checkpoints = SlowNotes()
    bounds = ConsumerBounds(save_s=0.02, release_s=0.05)
    async with limited(checkpoints=checkpoints, consumers=bounds) as group:
        await group.produce(1)
        socket = await group.consumer(limit=2)
        await socket.next()
        group.coordinator.let_go("consumer-1", 0)
        assert (await socket.next())["type"] == "revoke"
        await until(lambda: checkpoints.waiting > 0)
        socket.leave()
        await socket.closed()
        checkpoints.gate.set()
        await until(lambda: bool(group.coordinator.left()))
        socket = await group.consumer(limit=2)
        assert (await socket.next())["deliveries"] == 2
        assert not await group.all_letters()


async def test_nothing_is_alone_beside_what_a_consumer_had_its_time_for_and_still_has() -> None:
    checkpoints = SlowNotes()
    checkpoints.gate.set()
    bounds = ConsumerBounds(save_s=0.02, release_s=0.05)
    async with limited(checkpoints=checkpoints, consumers=bounds) as group:
        await group.produce(1, target=0)
        await group.produce(1, target=1)
        socket = await group.consumer(0, 1, limit=2)
        for _ in range(2):
            await socket.next()
        await group.dies(socket)
        socket = await group.consumer(0, 1, limit=2)
        first = await socket.next()
        checkpoints.gate.clear()
        noted = checkpoints.waiting
        group.coordinator.let_go("consumer-2", first["target"])
        assert (await socket.next())["type"] == "revoke"
        await until(lambda: checkpoints.waiting > noted)
        other = {"target": 1 - first["target"], "epoch": first["epoch"]}
        socket.say(type="ack", positions={"0": 0}, **other)
        assert await is_silent(socket), "it has not heard yet that it is gone"
        checkpoints.gate.set()
        assert (await socket.next())["type"] == "revoked"
        assert (await socket.next())["target"] == other["target"]


async def test_nothing_is_certain_beside_what_a_forced_handover_left_behind() -> None:
    """The program is stuck in what it was handed of a target that is somebody else's by now."""
    async with limited(consumers=ConsumerBounds(save_s=0.02, release_s=0.05)) as group:
        [stuck] = await group.produce(1, target=0)
        [waiting] = await group.produce(1, target=1)
        socket = await group.consumer(0, 1, limit=2)
        assert {(await socket.next())["seq"] for _ in range(2)} == {stuck.seq, waiting.seq}
        await group.dies(socket)
        socket = await group.consumer(0, 1, limit=2)
        first = await socket.next()
        assert await is_silent(socket), "that is alone"
        group.coordinator.let_go("consumer-2", first["target"])
        assert (await socket.next())["type"] == "revoke"
        assert (await socket.next())["type"] == "revoked"
        second = await socket.next()
        await group.dies(socket)
        socket = await group.consumer(second["target"], limit=2)
        assert (await socket.next())["seq"] == second["seq"]
        assert second["seq"] not in [one.delivery.seq for one in await group.all_letters()]


async def test_what_a_consumer_worked_on_when_it_connected_is_spared_once() -> None:
    """What others fail with after that counts, also when the target comes back."""
    async with limited(consumers=ConsumerBounds(save_s=0.02, release_s=0.05)) as group:
        [record] = await group.produce(1)
        group.coordinator.give("one", 0, epoch=1)
        at_work = [[0, 0, record.seq, 1]]
        asked = {"max_deliveries": 3, "from": "earliest", "at_work": at_work}
        socket = await join(group.world, "one", **asked)
        assert [(await socket.next())["type"] for _ in range(2)] == ["assigned", "event"]
        group.coordinator.let_go("one", 0)
        assert [(await socket.next())["type"] for _ in range(2)] == ["revoke", "revoked"]
        group.coordinator.take("one", 0)
        other = await group.consumer(limit=3, epoch=2)
        nack(other, await other.next(), 2)
        await until(lambda: group.tried() == ((record.seq, 2),))
        other.say(type="leave")
        await other.closed()
        group.coordinator.give("one", 0, epoch=3)
        await assigned(socket, 1)
        assert (await socket.next())["deliveries"] == 3


async def test_a_connection_that_the_gateway_ended_is_no_failure_of_the_consumer() -> None:
    async with limited() as group:
        await group.produce(1)
        socket = await group.consumer(limit=1)
        assert (await socket.next())["seq"] == 1
        [consumer] = group.world.gateway._consumers._table.values()
        [target] = consumer.targets()
        assert target._subscriber is not None
        target._subscriber.close(NotNow("this subscription failed here; subscribe again"))
        await socket.closed()
        await until(lambda: bool(group.coordinator.left()))
        socket = await group.consumer(limit=1)
        assert (await socket.next())["seq"] == 1
        assert not await group.all_letters()


async def test_two_redeliveries_of_one_record_are_told_apart() -> None:
    async with limited() as group:
        socket = await group.consumer(0, 1, limit=2)
        records = await group.produce(1)
        ack(socket, await socket.next())
        lanes = group.world.lanes

        def again(wish: int) -> Delivery:
            delivery = lanes.match(records[0])
            assert delivery is not None
            return replace(delivery, redelivery=True, wish=wish)

        assert (await lanes.deliver([again(1)])).verdicts == ("retry",)
        assert (await socket.next())["redelivery"]
        await group.dies(socket)
        socket = await group.consumer(0, 1, limit=2)
        await lanes.deliver([again(2)])
        await lanes.deliver([again(1)])
        said = {"type": "ack", "target": 0, "epoch": 2, "redelivered": {"0": [records[0].seq]}}
        assert (await socket.next()).get("deliveries", 1) == 1
        socket.say(**said)
        assert (await socket.next())["deliveries"] == 2, "the other one, alone"
        socket.say(**said)
        assert len(await group.produce(3, target=1)) == 3
        assert len(await process(socket, 3)) == 3


async def test_what_failed_before_history_was_lost_is_not_held_against_what_comes() -> None:
    checkpoints, ref = FaultyCheckpoints(), PartitionRef(NAME, 0)
    await checkpoints.claim(ref, Fence(1))
    await checkpoints.save(ref, Fence(1), 10, Tally())
    await checkpoints.note_tries(ref, Fence(1), ((11, 2, 2),))
    bounds = ConsumerBounds(beyond_end_s=0.0, save_s=0.02)
    async with limited(checkpoints=checkpoints, consumers=bounds) as group:
        group._epoch = 1
        await group.produce(9)
        socket = await group.consumer(limit=2)
        assert (await socket.next())["type"] == "resync"
        socket.say(type="ack", target=0, epoch=2, positions={"0": 9})
        await group.produce(3)
        assert await process(socket, 3) == [10, 11, 12]
        assert not await group.all_letters()


async def test_a_letter_that_an_operator_deleted_does_not_come_back() -> None:
    async with limited() as group:
        await group.produce(2)
        for _ in range(2):
            socket = await group.consumer(limit=2)
            assert (await socket.next())["seq"] == 1
            await group.dies(socket)
        socket = await group.consumer(limit=2)
        assert (await socket.next())["seq"] == 2
        letter = await group.has_letter()
        await group.letters.delete([letter.id])
        assert (await socket.ask(type="leave"))["type"] == "ended"
        socket = await group.consumer(limit=2)
        assert (await socket.next())["seq"] == 2
        assert not await group.all_letters()


async def test_a_retried_letter_that_kills_every_consumer_is_given_up_again() -> None:
    async with limited() as group:
        socket, letter = await given_up(group, limit=2)
        await group.letters.revive([letter.id], now_ms=5)
        for number in (1, 2):
            message = await socket.next()
            assert message.get("deliveries", 1) == number
            await group.dies(socket)
            group.world.gateway._consumers._groups_here()  # nobody of it is here meanwhile
            socket = await group.consumer(limit=2)
        assert (await group.has_letter()).id == letter.id
        assert await is_silent(socket)


async def test_a_letter_without_its_document_is_dead_again_and_says_why() -> None:
    async with limited() as group:
        socket = await group.consumer(limit=1)
        await group.produce(1)
        message = await socket.next()
        group.world.log.keep_from(PartitionRef("flights", 0), 2)
        nack(socket, message, 1)
        assert (await socket.next())["type"] == "given_up"
        ack(socket, message)
        letter = await group.has_letter()
        await group.letters.revive([letter.id], now_ms=5)
        stored = group.letters.stored.letters
        await until(lambda: any("nobody can be handed" in one.error for one in stored.values()))
        assert await is_silent(socket)


# --- beside that ---------------------------------------------------------------------------------


async def test_the_next_owner_is_told_of_a_lost_history_that_nobody_acknowledged() -> None:
    checkpoints = FaultyCheckpoints()
    await commit(checkpoints, 0, seq=100)
    bounds = ConsumerBounds(beyond_end_s=0.0, save_s=0.02)
    async with limited(checkpoints=checkpoints, consumers=bounds) as group:
        group._epoch = 1
        await group.produce(9)
        for _ in range(2):
            socket = await group.consumer(limit=0)
            resync = await socket.next()
            assert (resync["type"], resync["after"], resync["from"]) == ("resync", 0, 10)
            await group.dies(socket)


async def test_who_leaves_for_good_has_left_for_good_though_its_connection_ends_meanwhile() -> None:
    async with limited() as group:
        await group.produce(1)
        socket = await group.consumer(limit=2)
        message = await socket.next()
        group.world.checkpoints.takes_s = 0.5
        ack(socket, message)
        socket.say(type="leave")
        [consumer] = group.world.gateway._consumers._table.values()
        await until(lambda: consumer.ended)
        socket.leave()
        await until(lambda: bool(group.coordinator.left()))
        assert committed(group.world, 0, 0) == 1
        await asyncio.sleep(0.1)
        assert group.coordinator.left() == [("consumer-1", True)]
