"""Notes in files: all that was written before a process died is there, and only then."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import msgspec
import pytest
from msgspec.structs import replace

from headgate.adapters.embedded import notes as module
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.notes import FileLaneNotes, FileRouterNotes
from headgate.errors import StorageFailed
from headgate.model.control.from_coordinator import (
    Assign,
    PushTopology,
    SubscriptionChanges,
    SubscriptionSnapshot,
)
from headgate.model.event import Fence, PartitionRef
from headgate.model.notes import Claims, Entry, Holds, Left, RouterMemory, Waits
from headgate.model.subscription import Subscription
from headgate.model.topology import Node, Owner, Topology

P, Q = PartitionRef("flights", 0), PartitionRef("flights", 1)
TOPOLOGY = Topology(7, nodes=(Node("gateway-1", "gateway", "http://gateway-1"),))


def subscription(name: str, where: str | None = None) -> Subscription:
    return Subscription(name, "gateway-1", "flights", where)


def knowing(*names: str, revision: int = 5) -> list[Entry]:
    return [PushTopology(TOPOLOGY), SubscriptionSnapshot(revision, tuple(map(subscription, names)))]


def holding(fence: Fence, *refs: PartitionRef) -> Holds:
    return Holds(tuple((ref, fence) for ref in refs))


def claiming(fence: Fence, *refs: PartitionRef) -> Claims:
    return Claims(tuple((ref, fence) for ref in refs))


def lane(folder: Path, window: int = 3, attempt: int = 0, number: int = 0) -> FileLaneNotes:
    return FileLaneNotes(folder, window=window, attempt=attempt, lane=number, incarnation="a1b2")


def left(folder: Path, *refs: PartitionRef) -> Left:
    return asyncio.run(lane(folder, window=99).left(refs))


def written(folder: Path, entries: list[Entry], *, leave: bool = True, window: int = 3) -> None:
    notes = lane(folder, window)
    for entry in entries:
        notes.note(entry)
    notes.close(leave=leave)


def test_all_that_a_lane_knew_is_left_of_what_it_held(tmp_path: Path) -> None:
    changes = SubscriptionChanges(6, (subscription("b", "n > 1"), subscription("c")), ("a",))
    written(tmp_path, [*knowing("a", "b"), holding(Fence(5, 3), P, Q), changes])
    assert left(tmp_path, P) == Left(
        {P: frozenset({Fence(5, 3)})},
        topology=TOPOLOGY,
        revision=6,
        subscriptions=(subscription("b", "n > 1"), subscription("c")),
    )
    assert left(tmp_path, PartitionRef("flights", 2)) == Left()


def test_nothing_is_left_by_a_lane_that_lives_or_tore_it_up(tmp_path: Path) -> None:
    living = lane(tmp_path)
    for entry in (*knowing("a"), holding(Fence(5, 3), P)):
        living.note(entry)
    assert left(tmp_path, P) == Left(held={P: 0})
    living.close(leave=False)
    assert left(tmp_path, P) == Left()
    assert list(tmp_path.iterdir()) == []


def test_the_last_to_hold_a_partition_counts(tmp_path: Path) -> None:
    written(tmp_path, [*knowing("old"), holding(Fence(5, 3), P, Q)], window=3)
    written(tmp_path, [*knowing("new", revision=8), holding(Fence(5, 4), P)], window=4)
    found = left(tmp_path, P)
    assert (found.fences, found.revision) == ({P: frozenset({Fence(5, 4)})}, 8)
    assert [one.id for one in found.subscriptions] == ["new"]


def test_of_several_predecessors_all_is_put_together(tmp_path: Path) -> None:
    written(tmp_path, [*knowing("a", "b"), holding(Fence(5, 3), P)], window=3)
    written(tmp_path, [*knowing("b", "c", revision=8), holding(Fence(6, 4), Q)], window=4)
    found = left(tmp_path, P, Q)
    assert found.fences == {P: frozenset({Fence(5, 3)}), Q: frozenset({Fence(6, 4)})}
    assert found.revision == 8
    assert sorted(one.id for one in found.subscriptions) == ["a", "b", "c"]


def test_a_partition_that_somebody_living_holds_is_left_to_it(tmp_path: Path) -> None:
    written(tmp_path, [*knowing("a"), holding(Fence(5, 3), P)])
    living = lane(tmp_path, window=4)
    living.note(holding(Fence(5, 4), Q))
    found = left(tmp_path, P, Q)
    assert (found.fences, found.held) == ({P: frozenset({Fence(5, 3)})}, {Q: 0})
    living.close(leave=True)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([holding(Fence(5, 3), P)], id="it knew nothing"),
        pytest.param(
            [
                SubscriptionSnapshot(5, (subscription("a"),), more=True),
                holding(Fence(5, 3), P),
            ],
            id="half of a snapshot",
        ),
        pytest.param([*knowing("a"), holding(Fence(5, 3), P), Holds(())], id="it had let go"),
        pytest.param(knowing("a"), id="it never began"),
    ],
)
def test_what_is_not_whole_is_not_left(tmp_path: Path, entries: list[Entry]) -> None:
    written(tmp_path, entries)
    assert left(tmp_path, P) == Left()


def test_an_entry_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    """Nobody was told of it: that comes after the whole entry."""
    written(tmp_path, [*knowing("a"), holding(Fence(5, 3), P)])
    [path] = tmp_path.iterdir()
    before = len(path.read_bytes())
    path.unlink()
    change = SubscriptionChanges(6, (subscription("b"),))
    written(tmp_path, [*knowing("a"), holding(Fence(5, 3), P), change])
    whole = path.read_bytes()
    for size in range(before, len(whole), 7):
        path.write_bytes(whole[:size])
        assert [one.id for one in left(tmp_path, P).subscriptions] == ["a"]
    path.write_bytes(whole)
    assert [one.id for one in left(tmp_path, P).subscriptions] == ["a", "b"]


def test_what_cannot_be_understood_was_not_left(tmp_path: Path) -> None:
    written(tmp_path, [*knowing("a"), holding(Fence(5, 3), P)])
    [path] = tmp_path.iterdir()
    path.write_bytes(b"\x01\x00\x00\x00\x04what")
    assert left(tmp_path, P) == Left()


def test_many_subscriptions_are_written_in_parts_and_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 1_000)
    names = [f"s{number}" for number in range(2 * module.PART_SIZE + 1)]
    written(tmp_path, [*knowing(*names), holding(Fence(5, 3), P)])
    assert [one.id for one in left(tmp_path, P).subscriptions] == names


def test_notes_that_become_too_large_are_torn_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIZE_MAX_BYTES", 500)
    notes = lane(tmp_path)
    with pytest.raises(StorageFailed, match="too large"):
        notes.note(SubscriptionSnapshot(5, tuple(subscription(f"s{n}") for n in range(50))))
    notes.note(holding(Fence(5, 3), P))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_once_and_leaves_nothing(tmp_path: Path) -> None:
    notes = lane(tmp_path)
    notes.note(knowing("a")[0])
    assert notes._file is not None
    os.close(notes._file.fileno())  # whatever is written from now on fails
    with pytest.raises(StorageFailed, match="can't be written"):
        notes.note(holding(Fence(5, 3), P))
    notes.note(holding(Fence(5, 3), P))
    assert left(tmp_path, P) == Left()


def test_a_lane_that_lives_and_gives_no_sign_of_it_is_named(tmp_path: Path) -> None:
    frozen = lane(tmp_path)
    for entry in (*knowing("a"), holding(Fence(5, 3), P)):
        frozen.note(entry)
    [path] = tmp_path.iterdir()
    os.utime(path, (0, 0))
    assert left(tmp_path, P) == Left(held={P: os.getpid()})
    frozen.give_sign()
    assert left(tmp_path, P) == Left(held={P: 0})
    frozen.close(leave=False)
    frozen.give_sign()


def test_only_what_nobody_could_go_on_from_is_tidied_away(tmp_path: Path) -> None:
    written(tmp_path, [*knowing("a"), holding(Fence(5, 3), P, Q)], window=3)
    written(tmp_path, [*knowing("a"), holding(Fence(5, 4), P)], window=4)
    written(tmp_path, [*knowing("a"), claiming(Fence(5, 6), P)], window=6)
    living = lane(tmp_path, window=5)
    living.note(holding(Fence(5, 5), P))
    lane(tmp_path, window=7).tidy()
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["3", "5", "6"]
    living.note(holding(Fence(5, 5), P, Q))
    lane(tmp_path, window=7).tidy()
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["5", "6"]
    living.close(leave=False)


def test_what_nobody_has_touched_for_long_is_tidied_away(tmp_path: Path) -> None:
    written(tmp_path, [*knowing("a"), holding(Fence(5, 3), P)])
    [path] = tmp_path.iterdir()
    os.utime(path, (0, 0))
    lane(tmp_path, window=7).tidy()
    assert list(tmp_path.iterdir()) == []


def test_whoever_was_about_to_claim_may_have(tmp_path: Path) -> None:
    """All of them, down to the one who surely held it: the store knows which it was."""
    written(tmp_path, [*knowing("old"), holding(Fence(5, 2), P)], window=2)
    written(tmp_path, [*knowing("a"), holding(Fence(5, 3), P, Q)], window=3)
    written(tmp_path, [*knowing("b", revision=6), claiming(Fence(5, 4), P)], window=4)
    written(tmp_path, [*knowing("c", revision=7), claiming(Fence(5, 5), P)], window=5)
    found = left(tmp_path, P, Q)
    assert found.fences == {
        P: frozenset({Fence(5, 3), Fence(5, 4), Fence(5, 5)}),
        Q: frozenset({Fence(5, 3)}),
    }
    assert sorted(one.id for one in found.subscriptions) == ["a", "b", "c"]
    living = lane(tmp_path, window=6)
    living.note(claiming(Fence(5, 6), P))
    assert left(tmp_path, P) == Left(held={P: 0})
    living.note(Holds(()))
    assert P in left(tmp_path, P).fences, "it didn't get it"
    living.close(leave=False)


def test_nobody_finds_notes_that_are_not_locked_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looked at them in that moment would have the lock in their writer's place."""
    found: list[str] = []
    flock = fcntl.flock

    def looked_at(file: IO[bytes], how: int) -> None:
        found.extend(path.name for path in module._files(tmp_path))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    notes = lane(tmp_path)
    notes.note(holding(Fence(5, 3), P))
    assert found == []
    notes.close(leave=False)


def test_a_killed_process_has_left_all_it_had_said(tmp_path: Path) -> None:
    """The kernel keeps what it wrote, and lets go of its lock."""
    entries = [*knowing("a", "b"), holding(Fence(5, 3), P)]
    program = (
        "import signal, sys, msgspec\n"
        "from pathlib import Path\n"
        "from headgate.adapters.embedded.notes import FileLaneNotes\n"
        "from headgate.model.notes import Entry\n"
        "notes = FileLaneNotes(Path(sys.argv[1]), window=3, attempt=0, lane=0, incarnation='a')\n"
        "for entry in msgspec.json.decode(sys.argv[2], type=list[Entry]):\n"
        "    notes.note(entry)\n"
        "print('written', flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), msgspec.json.encode(entries).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        assert left(tmp_path, P) == Left(held={P: 0})
        process.kill()
        process.wait(30)
    assert [one.id for one in left(tmp_path, P).subscriptions] == ["a", "b"]


# --- of a router ---------------------------------------------------------------------------------


async def test_a_router_recalls_what_it_remembered(tmp_path: Path) -> None:
    notes = FileRouterNotes(tmp_path / "of-router-1")
    assert notes.recall() == RouterMemory()
    memory = RouterMemory(8, Assign(3, (Owner(P, "router-1", 5),)), TOPOLOGY)
    await notes.remember(memory)
    assert FileRouterNotes(tmp_path / "of-router-1").recall() == memory
    assert await notes.next_window(memory) == 9
    assert FileRouterNotes(tmp_path / "of-router-1").recall() == replace(memory, window=9)
    await notes.remember(memory)
    assert notes.recall().window == 9, "a number that was given out stays so"
    (tmp_path / "of-router-1" / "memory.json").write_bytes(b"{")
    assert notes.recall() == RouterMemory()


async def test_no_two_routers_of_a_name_give_a_window_the_same_number(tmp_path: Path) -> None:
    """Their lanes would have the same fence, which keeps neither from what the other holds."""
    one, other = FileRouterNotes(tmp_path), FileRouterNotes(tmp_path)
    assert await one.next_window(RouterMemory(window=7)) == 8
    assert await other.next_window(RouterMemory(window=7)) == 9
    assert await one.next_window(RouterMemory(window=8)) == 10
    with (tmp_path / "memory.lock").open("wb") as writes:
        fcntl.flock(writes, fcntl.LOCK_EX)
        with pytest.raises(StorageFailed, match="stop all routers of this name but one"):
            await other.next_window(RouterMemory(window=10))
    assert other.recall().window == 10


def test_a_router_hears_which_of_its_living_lanes_wait(tmp_path: Path) -> None:
    written(tmp_path, [Waits(((P, "it is dead"),))], window=2)
    waiting, reading = lane(tmp_path, number=0), lane(tmp_path, number=1)
    waiting.note(Waits(((P, "nobody knows"), (Q, "nobody knows"))))
    reading.note(Waits(((Q, "it had to wait"),)))
    reading.note(holding(Fence(5, 3), Q))
    reading.note(Waits(()))
    assert FileRouterNotes(tmp_path).waiting() == [
        "nobody reads flights:0, flights:1: nobody knows"
    ]
    waiting.close(leave=False)
    assert FileRouterNotes(tmp_path).waiting() == []
    reading.close(leave=False)


@pytest.mark.parametrize("router_id", ["router-1", ".", "..", ""])
def test_the_notes_of_any_router_are_below_the_folder_of_all(
    tmp_path: Path, router_id: str
) -> None:
    folder = DataFolder(tmp_path).notes_dir(router_id)
    assert folder.resolve().parent == tmp_path / "notes"
