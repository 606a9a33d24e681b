"""A group whose consumers have a limit gives up what they fail with, and nothing else.

What meets what, and which test here puts it together:

                    nack                     loss of the consumer        redelivery
    limit           at_the_limit             lost_too_often              sent_again_and_fails
    others in hand  keeps_the_others         those_beside_it             (one path for both)
    other targets   (blame is certain)       nothing_of_any_target       -
    letters away    waits_for_its_letter     is_given_up_once_they_are   -
    former owner    -                        writes_no_letter            -
    leaving         asked_for_meanwhile      goodbye                     -
    restart         -                        another_gateway             -
    retention       without_its_document     -                           (carries its document)
    operator        -                        -                           of_the_group_alone
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.adapters.memory.letters import MemoryLetters, MemoryLetterStore
from headgate.decide.produce.placement import partition_of
from headgate.errors import StorageFailed
from headgate.model.event import Fence, PartitionRef, Record
from headgate.model.letters import Letter, LetterQuery, NewLetter
from headgate.model.position import Tally, Tries
from headgate.ports.letters import Fences
from headgate.services.gateway.groups.bounds import ConsumerBounds
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.gateway.groups.doubles import GroupCoordinator
from tests.services.gateway.groups.test_consumers import (
    TARGETS,
    ack,
    assigned,
    committed,
    grouped,
    join,
)
from tests.services.gateway.groups.test_targets_and_stores import only_target
from tests.services.gateway.world import World, WsSubscriber, until

Message = dict[str, Any]
NAME = f"@group/flights/radar/0-of-{TARGETS}"
EVERYTHING = LetterQuery(state=None)


def key_of(target: int) -> str:
    names = (f"key-{number}" for number in range(1_000))
    return next(key for key in names if partition_of(key, collection="", count=TARGETS) == target)


class FaultyLetters(MemoryLetterStore):
    failing = False

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        if self.failing:
            raise StorageFailed("the letters are on the moon")
        await super().put(letters, fences, now_ms=now_ms)


class Limited:
    """A gateway with letters, and a group whose consumers take turns."""

    def __init__(self, world: World, coordinator: GroupCoordinator, letters: FaultyLetters) -> None:
        self.world = world
        self.coordinator = coordinator
        self.letters = letters
        self._epoch = 0

    async def consumer(self, *targets: int, limit: int = 2, epoch: int = 0) -> WsSubscriber:
        """A new one, which owns these targets (0), under a higher epoch than anybody before."""
        self._epoch = max(self._epoch + 1, epoch)
        name = f"consumer-{self._epoch}"
        self.coordinator.give(name, *(targets or (0,)), epoch=self._epoch)
        socket = await join(self.world, name, max_deliveries=limit, **{"from": "earliest"})
        await assigned(socket, len(targets or (0,)))
        return socket

    async def produce(self, count: int, *, target: int = 0) -> list[Record]:
        log = self.world.log
        records = [log.append({"n": n}, partition=0, key=key_of(target)) for n in range(count)]
        await self.world.lanes.run()
        return records

    async def dies(self, socket: WsSubscriber) -> None:
        """Without a word, and is found to be gone."""
        gone = len(self.coordinator.left())
        socket.leave()
        await socket.closed()
        await until(lambda: len(self.coordinator.left()) > gone)

    async def all_letters(self) -> list[Letter]:
        return await self.letters.find(EVERYTHING)

    async def has_letter(self, *, state: str = "dead") -> Letter:
        def of_that_state() -> list[Letter]:
            return [one for one in self.letters.stored.letters.values() if one.state == state]

        await until(lambda: bool(of_that_state()))
        [letter] = of_that_state()
        return letter

    def tried(self) -> tuple[tuple[int, int], ...]:
        """Seqs and counts."""
        tried = self.world.checkpoints.stored[PartitionRef(NAME, 0)].position.tried
        return tuple((seq, count) for seq, count, _ in tried)


@contextlib.asynccontextmanager
async def limited(letters: MemoryLetters | None = None, **options: Any) -> AsyncIterator[Limited]:
    store = FaultyLetters(letters)
    async with grouped(letters=store, **options) as (world, coordinator):
        yield Limited(world, coordinator, store)


def nack(socket: WsSubscriber, message: Message, deliveries: int) -> None:
    about = {name: message[name] for name in ("target", "epoch", "partition", "seq")}
    again = {"redelivery": True} if message.get("redelivery") else {}
    socket.say(type="nack", deliveries=deliveries, **about, **again)


async def is_silent(socket: WsSubscriber) -> bool:
    answer = await socket.ask(type="ping", id="p")
    return answer == {"type": "pong", "id": "p"}


# --- said so -------------------------------------------------------------------------------------


async def test_what_is_nacked_at_the_limit_is_a_dead_letter_and_then_the_consumer_hears_so() -> (
    None
):
    async with limited() as group:
        socket = await group.consumer(limit=2)
        await group.produce(1)
        message = await socket.next()
        nack(socket, message, 1)
        assert await is_silent(socket), "it has another chance"
        nack(socket, message, 2)
        assert await socket.next() == {
            "type": "given_up",
            "target": 0,
            "epoch": 1,
            "partition": 0,
            "seq": 1,
        }
        [letter] = await group.all_letters()
        assert (letter.gateway_id, letter.state, letter.reason) == (NAME, "dead", "failed")
        assert (letter.attempts, letter.error) == (2, "consumers of group radar failed with it")
        assert bytes(letter.delivery.document) == b'{"n":0}'
        assert (letter.delivery.key, letter.delivery.seq) == (key_of(0), 1)
        assert committed(group.world, 0, 0) == 0, "the consumer has it in hand"
        ack(socket, message)
        await until(lambda: committed(group.world, 0, 0) == 1)


async def test_giving_one_up_keeps_the_others_in_hand() -> None:
    async with limited() as group:
        socket = await group.consumer(limit=1)
        await group.produce(1)
        first = await socket.next()
        nack(socket, first, 1)
        assert (await socket.next())["type"] == "given_up"
        await group.produce(2)
        assert await is_silent(socket), "with one delivery each is alone, and that one is in hand"
        ack(socket, first)
        second = await socket.next()
        assert second["seq"] == 2
        assert committed(group.world, 0, 0) <= 1


async def test_what_nobody_has_in_hand_can_not_be_nacked() -> None:
    async with limited() as group:
        socket = await group.consumer(limit=1)
        await group.produce(1)
        message = await socket.next()
        nack(socket, message | {"seq": 7}, 1)
        nack(socket, message | {"partition": 9}, 1)
        nack(socket, message | {"redelivery": True}, 1)
        assert await is_silent(socket)
        assert not await group.all_letters()


async def test_what_is_kept_back_from_the_consumer_can_not_be_nacked_by_it() -> None:
    async with limited() as group:
        socket = await group.consumer(limit=1)
        await group.produce(2)
        first = await socket.next()
        assert await is_silent(socket), "the second one waits to be alone"
        nack(socket, first | {"seq": 2}, 1)
        ack(socket, first)
        assert (await socket.next())["seq"] == 2
        assert not await group.all_letters()


async def test_the_consumer_waits_for_the_letter() -> None:
    async with limited() as group:
        socket = await group.consumer(limit=1)
        await group.produce(1)
        message = await socket.next()
        group.letters.failing = True
        nack(socket, message, 1)
        assert await is_silent(socket)
        group.letters.failing = False
        assert (await socket.next())["type"] == "given_up"
        assert len(await group.all_letters()) == 1


async def test_a_record_that_retention_took_is_a_letter_without_its_document() -> None:
    async with limited() as group:
        socket = await group.consumer(limit=1)
        await group.produce(1)
        message = await socket.next()
        group.world.log.keep_from(PartitionRef("flights", 0), 2)
        nack(socket, message, 1)
        assert (await socket.next())["type"] == "given_up"
        [letter] = await group.all_letters()
        assert bytes(letter.delivery.document) == b"null"
        assert "without its document" in letter.error


async def test_what_failed_and_is_asked_for_meanwhile_is_given_up_by_the_next_owner() -> None:
    async with limited() as group:
        group.letters.failing = True
        socket = await group.consumer(limit=2)
        await group.produce(1)
        message = await socket.next()
        nack(socket, message, 2)
        group.coordinator.let_go("consumer-1", 0)
        assert (await socket.next())["type"] == "revoke"
        socket.say(type="released", target=0, epoch=1)
        assert (await socket.next())["type"] == "revoked"
        await until(lambda: group.coordinator.released() == [0])
        assert group.tried() == ((1, 2),)
        group.letters.failing = False
        other = await group.consumer(limit=2)
        letter = await group.has_letter()
        assert letter.attempts == 2
        await until(lambda: committed(group.world, 0, 0) == 1)
        assert await is_silent(other)


# --- lost ----------------------------------------------------------------------------------------


async def test_what_consumers_are_lost_with_too_often_is_given_up_and_the_rest_goes_on() -> None:
    async with limited() as group:
        await group.produce(3)
        for number in (1, 2, 3):
            socket = await group.consumer(limit=3)
            message = await socket.next()
            assert (message["seq"], message.get("deliveries", 1)) == (1, number)
            await group.dies(socket)
            assert group.tried()[0] == (1, number)
        socket = await group.consumer(limit=3)
        came = [await socket.next()]
        assert [one["seq"] for one in came] == [2], "it has one delivery left, and is alone"
        assert (await group.has_letter()).delivery.seq == 1
        ack(socket, came[0])
        third = await socket.next()
        assert third["seq"] == 3
        ack(socket, third)
        await until(lambda: committed(group.world, 0, 0) == 3)
        assert len(await group.all_letters()) == 1


async def test_those_beside_it_are_never_given_up() -> None:
    """Consumers die of number 3, whatever else they have."""
    async with limited() as group:
        await group.produce(10)
        socket = await group.consumer(limit=2)
        assert [(await socket.next())["seq"] for _ in range(10)] == list(range(1, 11))
        await group.dies(socket)
        socket = await group.consumer(limit=2)
        for seq in (1, 2):
            message = await socket.next()
            assert message["seq"] == seq
            ack(socket, message)
        assert (await socket.next())["seq"] == 3
        await group.dies(socket)
        socket = await group.consumer(limit=2)
        for seq in range(4, 11):
            message = await socket.next()
            assert message["seq"] == seq
            ack(socket, message)
        await until(lambda: committed(group.world, 0, 0) == 10)
        assert [one.delivery.seq for one in await group.all_letters()] == [3]


async def test_nothing_of_any_target_is_beside_what_has_one_delivery_left() -> None:
    async with limited() as group:
        await group.produce(1)
        socket = await group.consumer(limit=2)
        await socket.next()
        await group.dies(socket)
        await group.produce(2, target=1)
        socket = await group.consumer(0, 1, limit=2)
        first = await socket.next()
        if first["target"] == 1:  # its turn came first: then the other one waits
            second = await socket.next()
            assert second["target"] == 1
            assert await is_silent(socket)
            ack(socket, second)
            first = await socket.next()
        assert (first["target"], first["deliveries"]) == (0, 2)
        assert await is_silent(socket)
        ack(socket, first)
        await group.produce(1, target=1)
        assert (await socket.next())["target"] == 1


async def one_left_beside(group: Limited, count: int) -> tuple[WsSubscriber, list[Message]]:
    """A consumer with `count` events in hand, and another target's event that is to be alone."""
    await group.produce(1, target=1)
    socket = await group.consumer(1, limit=2)
    await socket.next()
    await group.dies(socket)
    await group.produce(count)
    socket = await group.consumer(0, limit=2)
    came = [await socket.next() for _ in range(count)]
    [name] = [one for one in group.coordinator.owned if group.coordinator.owned[one].get(0)]
    group.coordinator.give(name, 1, epoch=came[0]["epoch"])
    await assigned(socket, 1)
    assert await is_silent(socket)
    return socket, came


def hold(socket: WsSubscriber, *messages: Message, of: Message) -> None:
    items = [(one["partition"], one["seq"], one.get("redelivery", False)) for one in messages]
    socket.say(type="held", target=of["target"], epoch=of["epoch"], items=items)


async def test_what_a_consumer_holds_back_keeps_nothing_from_being_alone() -> None:
    """Behind one that it wants much later, say: its program has neither."""
    async with limited() as group:
        socket, came = await one_left_beside(group, 3)
        nack(socket, came[1], 1)
        hold(socket, came[2], of=came[0])
        assert await is_silent(socket), "it works on what is before the nacked one"
        ack(socket, came[0])
        alone = await socket.next()
        assert (alone["target"], alone["deliveries"]) == (1, 2)
        await group.produce(1)
        assert await is_silent(socket)
        ack(socket, alone)
        assert (await socket.next())["seq"] == 5


async def test_what_is_held_back_no_more_is_worked_on() -> None:
    async with limited() as group:
        socket, came = await one_left_beside(group, 2)
        hold(socket, came[0], of=came[0])
        hold(socket, of=came[0])
        ack(socket, came[0])
        assert await is_silent(socket)
        hold(socket, came[1], came[0], {"partition": 7, "seq": 7}, of=came[0])
        assert (await socket.next())["target"] == 1


async def test_what_is_to_be_alone_and_held_back_keeps_nobody_waiting() -> None:
    """Behind one of its key that is wanted later; once it isn't, nothing else comes."""
    async with limited() as group:
        socket, came = await one_left_beside(group, 1)
        nack(socket, came[0], 1)
        alone = await socket.next()
        await group.produce(1)
        assert await is_silent(socket)
        hold(socket, alone, of=alone)
        beside = await socket.next()
        assert beside["target"] == 0
        hold(socket, of=alone)
        await group.produce(1)
        assert await is_silent(socket)
        ack(socket, alone)
        assert (await socket.next())["target"] == 0


async def test_what_a_consumer_with_many_in_hand_was_lost_with_comes_alone_the_last_time() -> None:
    async with limited() as group:
        await group.produce(5)
        socket = await group.consumer(limit=2)
        assert len([await socket.next() for _ in range(5)]) == 5
        await group.dies(socket)
        assert group.tried() == tuple((seq, 1) for seq in range(1, 6))
        socket = await group.consumer(limit=2)
        for seq in range(1, 6):
            message = await socket.next()
            assert (message["seq"], message["deliveries"]) == (seq, 2)
            assert await is_silent(socket)
            ack(socket, message)
        await until(lambda: committed(group.world, 0, 0) == 5)
        assert not await group.all_letters()


async def test_it_is_given_up_once_letters_can_be_written_and_nothing_passes_it_before() -> None:
    async with limited() as group:
        await group.produce(2)
        for _ in range(2):
            socket = await group.consumer(limit=2)
            await socket.next()
            await group.dies(socket)
        group.letters.failing = True
        socket = await group.consumer(limit=2)
        await group.produce(1)
        assert await is_silent(socket), "the next owner may not give it up"
        group.letters.failing = False
        assert (await group.has_letter()).attempts == 2
        for seq in (2, 3):
            message = await socket.next()
            assert message["seq"] == seq
            ack(socket, message)
        await until(lambda: committed(group.world, 0, 0) == 3)


async def test_a_former_owner_writes_no_letter() -> None:
    async with limited() as group:
        await group.produce(1)
        socket = await group.consumer(limit=1)
        message = await socket.next()
        await group.letters.claim({PartitionRef(NAME, 0): Fence(9)})
        nack(socket, message, 1)
        assert (await socket.next())["type"] == "revoked"
        assert not await group.all_letters()


@pytest.mark.parametrize(("said", "counts"), [({}, False), ({"failed": True}, True)])
async def test_only_who_says_goodbye_has_not_failed(said: Message, counts: bool) -> None:
    async with limited() as group:
        await group.produce(1)
        socket = await group.consumer(limit=2)
        await socket.next()
        assert (await socket.ask(type="leave", **said))["type"] == "ended"
        assert bool(group.tried()) == counts


async def test_who_had_its_time_has_failed() -> None:
    async with limited(consumers=ConsumerBounds(save_s=0.02, release_s=0.05)) as group:
        await group.produce(1)
        socket = await group.consumer(limit=2)
        await socket.next()
        group.coordinator.let_go("consumer-1", 0)
        assert (await socket.next())["type"] == "revoke"
        assert (await socket.next())["type"] == "revoked"
        assert group.tried() == ((1, 1),)


class SlowNotes(FaultyCheckpoints):
    """The first note of what failed arrives after all the others."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.notes = 0

    async def note_tries(self, ref: PartitionRef, fence: Fence, tried: Tries) -> None:
        self.notes += 1
        if self.notes == 1:
            await self.gate.wait()
        await super().note_tries(ref, fence, tried)


async def test_a_save_that_takes_long_takes_back_no_failure() -> None:
    checkpoints = SlowNotes()
    bounds = ConsumerBounds(save_s=60)
    async with limited(checkpoints=checkpoints, consumers=bounds) as group:
        await group.produce(1)
        socket = await group.consumer(limit=3)
        message = await socket.next()
        target = only_target(group.world)
        nack(socket, message, 1)
        assert await is_silent(socket)
        saves = [asyncio.create_task(target.save())]
        await until(lambda: checkpoints.notes == 1)
        nack(socket, message, 2)
        assert await is_silent(socket)
        saves.append(asyncio.create_task(target.save()))
        await asyncio.wait(saves, timeout=0.05)
        checkpoints.gate.set()
        await asyncio.gather(*saves)
        assert group.tried() == ((1, 2),)


async def test_what_fails_after_a_lost_history_is_given_up_too() -> None:
    checkpoints = FaultyCheckpoints()
    ref = PartitionRef(NAME, 0)
    await checkpoints.claim(ref, Fence(1))
    await checkpoints.save(ref, Fence(1), 100, Tally())
    bounds = ConsumerBounds(beyond_end_s=0.0)
    async with limited(checkpoints=checkpoints, consumers=bounds) as group:
        await group.produce(2)
        socket = await group.consumer(limit=2, epoch=2)
        assert (await socket.next())["reason"] == "lost_history"
        await group.produce(1)
        assert (await socket.next())["seq"] == 3
        await group.dies(socket)
        assert group.tried() == ((3, 1),)
        socket = await group.consumer(limit=2)
        assert (await socket.next())["reason"] == "lost_history", "this one may not know yet"
        message = await socket.next()
        assert (message["seq"], message["deliveries"]) == (3, 2)
        await group.dies(socket)
        await group.consumer(limit=2)
        assert (await group.has_letter()).delivery.seq == 3


async def test_another_gateway_knows_what_failed_here() -> None:
    letters = MemoryLetters()
    async with limited(letters) as group:
        await group.produce(1)
        for _ in range(2):
            socket = await group.consumer(limit=2)
            await socket.next()
            await group.dies(socket)
        checkpoints, stored = group.world.checkpoints, group.world.log.stored
    async with limited(letters, checkpoints=checkpoints) as group:
        group.world.log.stored = stored
        group._epoch = 2
        await group.consumer(limit=2)
        assert (await group.has_letter()).attempts == 2
        await until(lambda: committed(group.world, 0, 0) == 1)


# --- an operator ---------------------------------------------------------------------------------


async def given_up(group: Limited, limit: int = 1) -> tuple[WsSubscriber, Letter]:
    """A consumer that has given up the only event there is."""
    socket = await group.consumer(limit=limit)
    await group.produce(1)
    message = await socket.next()
    nack(socket, message, limit)
    assert (await socket.next())["type"] == "given_up"
    ack(socket, message)
    await until(lambda: committed(group.world, 0, 0) == 1)
    return socket, await group.has_letter()


async def test_a_letter_that_is_retried_reaches_the_group_and_goes_when_it_is_processed() -> None:
    async with limited() as group:
        socket, letter = await given_up(group)
        await group.letters.revive([letter.id], now_ms=5)
        again = await socket.next()
        assert (again["seq"], again["redelivery"], again["document"]) == (1, True, {"n": 0})
        assert await is_silent(socket), "once"
        assert len(await group.all_letters()) == 1
        socket.say(type="ack", target=0, epoch=1, redelivered={"0": [1]})
        await until(lambda: not group.letters.stored.letters)


async def test_a_letter_that_is_processed_is_not_sent_again_while_the_store_still_has_it() -> None:
    async with limited() as group:
        socket, letter = await given_up(group)
        await group.letters.revive([letter.id], now_ms=5)
        found = await group.letters.find(EVERYTHING)
        again = await socket.next()
        socket.say(type="ack", target=0, epoch=1, redelivered={"0": [again["seq"]]})
        await until(lambda: not group.letters.stored.letters)
        [consumer] = group.world.gateway._consumers._table.values()
        [target] = consumer.targets()
        target.send_again(found[0])
        assert await is_silent(socket)


async def test_a_letter_that_is_retried_and_fails_again_is_dead_again() -> None:
    async with limited() as group:
        socket, letter = await given_up(group)
        await group.letters.revive([letter.id], now_ms=5)
        nack(socket, await socket.next(), 1)
        heard = await socket.next()
        assert (heard["type"], heard["redelivery"]) == ("given_up", True)
        dead = await group.has_letter()
        assert (dead.id, dead.attempts) == (letter.id, 2)
        assert await is_silent(socket)
        await group.letters.revive([letter.id], now_ms=6)
        assert (await socket.next())["redelivery"], "another wish, another delivery"


async def test_a_letter_that_is_retried_goes_to_whoever_owns_its_target_then() -> None:
    async with limited() as group:
        socket, letter = await given_up(group, limit=3)
        await group.letters.revive([letter.id], now_ms=5)
        assert (await socket.next())["redelivery"]
        await group.dies(socket)
        assert (await group.has_letter(state="parked")).id == letter.id
        socket = await group.consumer(limit=3)
        again = await socket.next()
        assert (again["redelivery"], again["deliveries"]) == (True, 2)


async def test_a_retried_letter_of_a_group_that_is_cut_otherwise_now_is_dead_again() -> None:
    """Nobody has its target, whatever epoch was the last to have it."""
    async with limited() as group:
        socket, letter = await given_up(group)
        name = "@group/flights/radar/6-of-7"
        old = NewLetter(name, "dead", "failed", letter.delivery, 3)
        await group.letters.put([old], {old.fenced_by: Fence(9)}, now_ms=5)
        [stranded] = [one.id for one in await group.all_letters() if one.gateway_id == name]
        await group.letters.revive([stranded], now_ms=6)
        stored = group.letters.stored.letters
        await until(lambda: stored[stranded].state == "dead")
        assert stored[stranded].error == (
            "target 6 of 7 of group radar gave it up, and the group has 4 targets now, so nobody "
            "can be handed it: produce the event again"
        )
        assert stored[stranded].attempts == 3
        assert await is_silent(socket)


async def test_a_consumer_without_a_limit_gets_it_too() -> None:
    async with limited() as group:
        socket, letter = await given_up(group)
        await group.dies(socket)
        await group.letters.revive([letter.id], now_ms=5)
        socket = await group.consumer(limit=0)
        assert (await socket.next())["redelivery"]


async def test_another_group_does_not_get_it() -> None:
    async with limited() as group:
        socket, letter = await given_up(group)
        await group.letters.delete([letter.id])
        other = replace(letter, gateway_id=f"@group/flights/tower/0-of-{TARGETS}")
        new = NewLetter(other.gateway_id, "dead", "failed", other.delivery)
        await group.letters.put([new], {new.fenced_by: Fence(1)}, now_ms=1)
        [written] = await group.all_letters()
        await group.letters.revive([written.id], now_ms=5)
        await group.world.gateway._consumers._send_again(group.coordinator.group)
        assert await is_silent(socket)


async def test_what_a_lane_sends_again_and_fails_is_a_letter_of_the_group() -> None:
    async with limited() as group:
        socket = await group.consumer(limit=1)
        records = await group.produce(1)
        ack(socket, await socket.next())
        lanes = group.world.lanes
        [delivery] = [made for one in records if (made := lanes.match(one)) is not None]
        again = replace(delivery, redelivery=True, wish=1)
        assert (await lanes.deliver([again])).verdicts == ("retry",)
        message = await socket.next()
        assert message["redelivery"]
        group.world.log.keep_from(PartitionRef("flights", 0), 2)
        nack(socket, message, 1)
        assert (await socket.next())["type"] == "given_up"
        [letter] = await group.all_letters()
        assert bytes(letter.delivery.document) == b'{"n":0}'
        assert (await lanes.deliver([again])).verdicts == ("duplicate",)


# --- without letters -----------------------------------------------------------------------------


async def test_a_limit_needs_letters() -> None:
    async with grouped() as (world, _):
        socket = await world.consumer_connection()
        asked = {"topic": "flights", "group": "radar", "consumer": "one", "incarnation": "1"}
        answer = await socket.ask(type="join", max_deliveries=3, **asked)
        assert "routing.dlq.enabled" in answer["error"]["message"]


@pytest.mark.parametrize("limit", [-1, 10_001, "3", 1.5])
async def test_a_limit_that_is_none_is_refused(limit: object) -> None:
    async with limited() as group:
        socket = await group.world.consumer_connection()
        asked = {"topic": "flights", "group": "radar", "consumer": "one", "incarnation": "1"}
        answer = await socket.ask(type="join", max_deliveries=limit, **asked)
        assert answer["type"] == "error"
