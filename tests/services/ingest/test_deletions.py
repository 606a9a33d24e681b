"""What an ingest node does with the log partitions of deleted topics, among others that share its
store: nothing of a former topic is left, and nothing is taken from one that has its name since.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headgate.adapters.memory.log import MemoryLog
from headgate.errors import Fenced, OutcomeUnknown, StorageFailed
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Owner, Topic, Topology
from headgate.services.ingest import partitions
from tests.services.ingest.doubles import NODE, FaultyLogWriter, World
from tests.virtual_time import run_virtual

TRAFFIC = Topic("traffic", 1)
SHIPS = Topic("ships", 1)
REF, OTHER = TRAFFIC.refs()[0], SHIPS.refs()[0]


class Node(World):
    """An ingest node, with its own writer to the store that all of them share."""

    def __init__(self, shared: MemoryLog) -> None:
        self.writer = FaultyLogWriter(shared)
        super().__init__(self.writer)

    async def append(self, event_id: str, ref: PartitionRef = REF) -> None:
        await self.writer.append(ref, [Event(event_id, b"{}")], version=1, now_ms=0)


def owned(generation: int, node_id: str, epoch: int) -> Topology:
    return Topology(generation, topics=(TRAFFIC,), logs=(Owner(REF, node_id, epoch),))


def deleted(generation: int, *epochs: tuple[PartitionRef, int]) -> Topology:
    return Topology(
        generation,
        deleted=tuple(sorted({ref.topic for ref, _ in epochs})),
        emptied=tuple(Owner(ref, "", epoch) for ref, epoch in epochs),
    )


@pytest.fixture
def shared() -> MemoryLog:
    return MemoryLog()


def left(shared: MemoryLog, ref: PartitionRef = REF) -> list[str]:
    return [record.event_id for record in shared.partition(ref).records]


@pytest.mark.parametrize("saw_the_move", [True, False])
async def test_what_has_moved_on_is_emptied_by_whoever_had_it_before(
    shared: MemoryLog, saw_the_move: bool
) -> None:
    former, owner = Node(shared), Node(shared)
    await former.adopt(owned(1, NODE, 1))
    await owner.writer.open(REF, epoch=2)
    await owner.append("a")
    if saw_the_move:
        assert await former.adopt(owned(2, "another", 2))
    assert await former.adopt(deleted(3, (REF, 3)))
    assert (left(shared), former.partitions.too_low()) == ([], [])
    with pytest.raises(Fenced):
        await owner.append("b")


async def test_what_a_node_that_died_had_is_emptied_by_the_others(shared: MemoryLog) -> None:
    """Also when they have emptied something before."""
    dead, other = Node(shared), Node(shared)
    assert await other.adopt(deleted(1, (OTHER, 2)))
    await dead.adopt(owned(2, NODE, 1))
    await dead.append("a")
    assert await other.adopt(deleted(3, (OTHER, 2), (REF, 2)))
    assert other.writer.dropped == [(OTHER, 2), (REF, 2)], "each once"
    assert left(shared) == []
    await other.writer.open(REF, epoch=3)
    assert await other.writer.find(REF, ["a"]) == {}, "its keys are gone, too"


async def test_a_node_that_is_late_takes_nothing_from_a_topic_that_is_back(
    shared: MemoryLog,
) -> None:
    late, owner = Node(shared), Node(shared)
    late.writer.drop_gates[REF] = asyncio.Event()
    adopting = asyncio.create_task(late.adopt(deleted(1, (REF, 2))))
    await late.writer.until(lambda: bool(late.writer.dropped))
    await owner.adopt(owned(2, NODE, 3))
    await owner.append("new")
    late.writer.drop_gates[REF].set()
    assert await adopting, "that is nothing to wait for"
    assert left(shared) == ["new"]
    assert late.partitions.too_low() == [(REF, 3)], "the coordinator may have forgotten it"
    assert late.partitions.mine() == []
    assert await late.adopt(owned(3, "another", 3))
    assert late.partitions.too_low() == []


async def test_what_cannot_be_emptied_now_is_tried_again(shared: MemoryLog) -> None:
    node = Node(shared)
    await node.adopt(owned(1, NODE, 1))
    await node.append("a")
    node.writer.drop_failures[REF] = StorageFailed("the disk is away")
    gone = deleted(2, (REF, 2), (OTHER, 1))
    for _ in range(2):
        assert await node.adopt(gone), "only a topic of that name has to wait"
        assert node.partitions.undropped == {"traffic"}
    assert left(shared) == ["a"]
    node.writer.drop_failures.clear()
    assert await node.adopt(gone)
    assert (left(shared), node.partitions.undropped) == ([], set())
    assert node.writer.dropped == [(REF, 2), (OTHER, 1), *[(REF, 2)] * 2]


def test_nobody_waits_for_all_that_was_ever_deleted(shared: MemoryLog) -> None:
    """A node that starts looks at all of it; what can't be dropped comes last."""
    refs = [PartitionRef(f"topic-{number:02}", 0) for number in range(20)]
    gone = deleted(1, *((ref, 2) for ref in refs))

    async def adopts() -> None:
        node, loop = Node(shared), asyncio.get_running_loop()
        node.writer.drop_takes_s = 0.3
        node.writer.drop_failures |= dict.fromkeys(refs[:4], StorageFailed("the disk is away"))
        for _ in range(9):
            began_s = loop.time()
            assert await node.adopt(gone)
            assert loop.time() - began_s < 1.5
        assert sorted({ref for ref, _ in node.writer.dropped}) == refs
        assert node.partitions.undropped == {ref.topic for ref in refs[:4]}

    run_virtual(adopts())


async def test_an_append_that_hangs_holds_only_a_topic_of_its_own_name(
    shared: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "FINISH_S", 0.01)
    node = Node(shared)
    await node.adopt(owned(1, NODE, 1))
    node.writer.gates[REF] = gate = asyncio.Event()
    writing = asyncio.create_task(node.write(TRAFFIC, [Event("a", b"{}")], timeout_s=0.01))
    await asyncio.wait({writing})
    gone = deleted(2, (REF, 2))
    others = msgspec.structs.replace(gone, topics=(SHIPS,), logs=(Owner(OTHER, NODE, 1),))
    async with asyncio.timeout(5.0):
        assert await node.adopt(others)
    assert node.partitions.undropped == {"traffic"}
    assert node.partitions.get(OTHER) is not None
    gate.set()
    assert isinstance(writing.exception(), OutcomeUnknown)
    await node.adopt(others)
    assert node.partitions.undropped == set()


async def test_each_deletion_of_a_topic_counts(shared: MemoryLog) -> None:
    node = Node(shared)
    for life in range(3):
        await node.adopt(owned(2 * life + 1, NODE, 2 * life + 1))
        await node.append("a")
        assert left(shared) == ["a"]
        assert await node.adopt(deleted(2 * life + 2, (REF, 2 * life + 2)))
        assert left(shared) == []
    assert shared.partition(REF).state.head == 3
