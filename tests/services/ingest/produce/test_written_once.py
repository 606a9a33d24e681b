"""Events of opportunistic topics that are sent again, in whatever way and to whatever node: they
are in the log once. On virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest

from headgate.adapters.memory.http import MemoryHttpCalls, MemoryWeb
from headgate.adapters.memory.log import MemoryLog
from headgate.decide.produce import homes
from headgate.errors import OutcomeUnknown, PeerUnreachable, StorageFailed
from headgate.model.api import ProduceAnswer, ProduceRequest, ProduceResult
from headgate.model.event import Event
from headgate.model.topology import Node, Owner, Topic, Topology
from headgate.services.ingest.produce.peers import ProducePeers
from tests.services.ingest.doubles import FaultyLogWriter, World
from tests.virtual_time import run_virtual

TTL_S = 1_800.0
FULL = StorageFailed("the disk is full")


def events(*ids: str) -> list[Event]:
    return [Event(one, b"{}") for one in ids]


class Peers(ProducePeers):
    """The other nodes: those of the stage that aren't `away`."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(MemoryHttpCalls(MemoryWeb()))
        self.stage = stage

    async def produce(
        self, url: str, topic: str, request: ProduceRequest, *, hops: int, timeout_s: float
    ) -> ProduceAnswer:
        name = url.removeprefix("http://")
        if name in self.stage.away:
            raise PeerUnreachable(f"nothing answers at {url}")
        return ProduceAnswer(
            await self.stage.send(
                name,
                *(event.event_id or "" for event in request.events),
                hops=hops,
                again=request.again,
            )
        )


@dataclass
class Stage:
    """Ingest nodes that share a log of six partitions; who owns which is said with `give`."""

    topic: Topic = field(default_factory=lambda: Topic("jobs", 6, "opportunistic"))
    log: MemoryLog = field(default_factory=MemoryLog)
    nodes: dict[str, World] = field(default_factory=dict)
    writers: dict[str, FaultyLogWriter] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    generation: int = 0
    epochs: dict[int, tuple[str, int]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        self.writers[name] = FaultyLogWriter(self.log)
        self.nodes[name] = World(
            self.writers[name], peers=Peers(self), node_id=name, idempotency_ttl_s=TTL_S
        )

    async def give(self, *owners: str) -> None:
        """Partition N belongs to the Nth of `owners` (in turns), and all that run hear of it."""
        self.generation += 1
        for number in range(self.topic.partitions):
            owner = owners[number % len(owners)]
            before, epoch = self.epochs.get(number, ("", 0))
            self.epochs[number] = (owner, epoch + (before != owner))
        made = Topology(
            self.generation,
            (self.topic,),
            tuple(Node(name, "ingest", f"http://{name}") for name in sorted({*owners})),
            tuple(Owner(ref, *self.epochs[ref.partition]) for ref in self.topic.refs()),
        )
        for name, world in self.nodes.items():
            if name not in self.away:
                assert await world.adopt(made)

    async def send(
        self, name: str, *ids: str, hops: int = 0, timeout_s: float = 5.0, again: bool = False
    ) -> list[ProduceResult]:
        return await self.nodes[name].write(
            self.topic, events(*ids), timeout_s=timeout_s, hops=hops, again=again
        )

    def written(self) -> Counter[str]:
        found = self.log.partitions.values()
        return Counter(record.event_id for one in found for record in one.records)

    def home(self, first_id: str, *names: str) -> str:
        return homes.home([f"http://{name}" for name in names], first_id).removeprefix("http://")


def play(scenario: Coroutine[Any, Any, Stage], *ids: str) -> Stage:
    """Afterwards each of `ids`, and whatever else is there, is in the log once."""
    stage = run_virtual(scenario)
    counts = stage.written()
    assert set(counts.values()) == {1}, counts
    assert counts.keys() >= {*ids}
    return stage


async def one_node() -> Stage:
    stage = Stage()
    stage.start("a")
    await stage.give("a")
    return stage


async def three_nodes() -> Stage:
    stage = Stage()
    for name in ("a", "b", "c"):
        stage.start(name)
    await stage.give("a", "b", "c")
    return stage


# --- one node ------------------------------------------------------------------------------------


def test_what_comes_again_in_other_company_is_found() -> None:
    async def scenario() -> Stage:
        stage = await one_node()
        await stage.send("a", "e8", "e10")
        await stage.send("a", "e5", "e8")
        await stage.send("a", "e10", "e12")
        return stage

    play(scenario(), "e5", "e8", "e10", "e12")


def test_an_id_is_known_for_as_long_as_the_log_keeps_it_whatever_came_since() -> None:
    async def scenario() -> Stage:
        stage = await one_node()
        first = await stage.send("a", "x", "y")
        for number in range(300):
            await stage.send("a", *(f"{number}-{n}" for n in range(100)))
        await asyncio.sleep(TTL_S * 0.9)
        assert await stage.send("a", "y", "x") == first[::-1]
        return stage

    play(scenario(), "x", "y")


def test_what_is_new_is_hardly_ever_looked_for() -> None:
    """What is remembered says "perhaps" of a new id now and then, by its hash."""

    async def scenario() -> Stage:
        stage = await one_node()
        for number in range(300):
            await stage.send("a", *(f"{number}-{n}" for n in range(100)))
        return stage

    assert len(play(scenario()).writers["a"].finds) <= 300 * 6 // 50


@pytest.mark.parametrize("gone", [True, False], ids=["left", "still-there"])
def test_a_retry_while_the_first_attempt_is_being_written_waits_for_it(gone: bool) -> None:
    async def scenario() -> Stage:
        stage = await one_node()
        writer = stage.writers["a"]
        for ref in stage.topic.refs():
            writer.delays_s[ref] = 1.0
        first = asyncio.create_task(stage.send("a", "x", "y"))
        await asyncio.sleep(0.1)
        if gone:
            first.cancel()
        again = asyncio.create_task(stage.send("a", "y", "z"))
        await asyncio.gather(first, again, return_exceptions=True)
        assert len(again.result()) == 2
        return stage

    play(scenario(), "x", "y", "z")


def test_a_retry_while_the_first_attempt_waits_for_a_partition_waits_too() -> None:
    async def scenario() -> Stage:
        stage = await one_node()
        writer = stage.writers["a"]
        for ref in stage.topic.refs():
            writer.failures[ref] = FULL
        first = asyncio.create_task(stage.send("a", "x"))
        await asyncio.sleep(0.3)
        again = asyncio.create_task(stage.send("a", "x"))
        await asyncio.sleep(0.1)
        writer.failures.clear()
        assert await first == await again
        return stage

    play(scenario(), "x")


def test_who_waits_for_an_earlier_attempt_is_told_by_its_deadline() -> None:
    async def scenario() -> Stage:
        stage = await one_node()
        await stage.send("a", "other")
        for ref in stage.topic.refs():
            stage.writers["a"].delays_s[ref] = 2.0
        first = asyncio.create_task(stage.send("a", "x"))
        await asyncio.sleep(0.1)
        with pytest.raises(OutcomeUnknown, match="same event ids"):
            await stage.send("a", "x", timeout_s=0.5)
        await first
        return stage

    play(scenario(), "x")


# --- several nodes -------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["a", "b", "c"])
@pytest.mark.parametrize("again", ["a", "b", "c"])
def test_the_same_request_is_written_once_whichever_nodes_it_comes_to(
    first: str, again: str
) -> None:
    async def scenario() -> Stage:
        stage = await three_nodes()
        for number in range(10):
            ids = (f"{number}-1", f"{number}-2")
            assert await stage.send(first, *ids) == await stage.send(again, *ids)
        return stage

    play(scenario())


@pytest.mark.parametrize("names", list(permutations("abc")), ids="".join)
def test_what_comes_again_in_other_company_is_found_by_any_node_if_its_sender_says_so(
    names: tuple[str, ...],
) -> None:
    """Long after all nodes began, and with first ids that lead to other nodes than before."""

    async def scenario() -> Stage:
        stage = await three_nodes()
        await asyncio.sleep(2 * TTL_S)
        for n in range(10):
            [e8, e10] = await stage.send(names[0], f"{n}-8", f"{n}-10")
            assert (await stage.send(names[1], f"{n}-5", f"{n}-8", again=True))[1] == e8
            assert (await stage.send(names[2], f"{n}-10", f"{n}-12", again=True))[0] == e10
        return stage

    play(scenario())


def test_both_attempts_at_the_same_time_at_different_nodes_are_one() -> None:
    async def scenario() -> Stage:
        stage = await three_nodes()
        for writer in stage.writers.values():
            for ref in stage.topic.refs():
                writer.delays_s[ref] = 0.5
        sent = [stage.send(name, f"{n}", f"{n}'") for n in range(10) for name in ("a", "b", "c")]
        await asyncio.gather(*sent)
        return stage

    play(scenario())


def test_what_the_home_wrote_before_it_died_is_found_by_who_takes_its_place() -> None:
    async def scenario() -> Stage:
        stage = await three_nodes()
        sent = {f"{n}": await stage.send("a", f"{n}", f"{n}'") for n in range(20)}
        stage.away.add("b")
        for number, results in sent.items():
            # Its partitions are nobody's yet: only the log knows what is there.
            assert await stage.send("a", number, f"{number}'") == results
        await stage.give("a", "c")
        for number, results in sent.items():
            assert await stage.send("c", number, f"{number}'") == results
        return stage

    play(scenario())


def test_what_was_written_for_a_home_that_was_away_is_found_when_it_is_back() -> None:
    async def scenario() -> Stage:
        stage = await three_nodes()
        await asyncio.sleep(2 * TTL_S)
        stage.away.add("b")
        ids = [one for one in (f"{n}" for n in range(30)) if stage.home(one, "a", "b", "c") == "b"]
        sent = {one: await stage.send("a", one) for one in ids}
        stage.away.clear()
        stage.start("b")
        await stage.give("a", "b", "c")
        for one, results in sent.items():
            assert await stage.send("c", one) == results
        return stage

    play(scenario())


def test_nothing_of_others_is_looked_at_once_nobody_has_come_or_gone_for_long() -> None:
    async def scenario() -> Stage:
        stage = await three_nodes()
        await asyncio.sleep(2 * TTL_S)
        looks: list[object] = []
        for world in stage.nodes.values():
            before = world.reader.find

            async def find(ref: Any, ids: Sequence[str], before: Any = before) -> dict[str, int]:
                looks.append(ref)
                found: dict[str, int] = await before(ref, ids)
                return found

            world.reader.find = find  # type: ignore[assignment,method-assign]
        for n in range(20):
            await stage.send("a", f"{n}")
        assert looks == []
        return stage

    play(scenario())


def test_a_home_that_doesnt_say_what_became_of_it_is_nobodys_leave_to_write_it() -> None:
    async def scenario() -> Stage:
        stage = await three_nodes()

        class Silent(Peers):
            async def produce(self, *_: Any, **__: Any) -> ProduceAnswer:
                raise OutcomeUnknown("no answer")

        other = next(f"{n}" for n in range(99) if stage.home(f"{n}", "a", "b", "c") != "a")
        mine = next(f"{n}" for n in range(99) if stage.home(f"{n}", "a", "b", "c") == "a")
        handing_on = stage.nodes["a"].writing.opportunistic._handing_on
        handing_on._peers = Silent(stage)
        with pytest.raises(OutcomeUnknown):
            await stage.send("a", other)
        await stage.send("a", mine)
        assert other not in stage.written()
        return stage

    play(scenario())
