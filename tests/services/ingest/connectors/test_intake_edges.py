"""A connector's reader where two things meet that are rare alone; test_intake.py has the
usual ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.adapters.memory.origin import MemoryHistory, MemoryOrigin
from headgate.decide.produce.placement import partition_of
from headgate.errors import OriginUnavailable, StorageFailed
from headgate.model.control.reports import ConnectorReports
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.model.topology import Owner, Topic
from headgate.ports.log import Taken
from headgate.ports.origin import PATIENCE_S, Changes, ChangeStream
from headgate.services.ingest.connectors.handing_in import AT_ONCE
from headgate.services.ingest.produce.appends import WriteBounds
from headgate.services.ingest.produce.writing import WritingOptions
from headgate.tasks import CLOSE_TIMEOUT_S
from tests.services.ingest.connectors.intake_stage import NAME, ONE, TWO, FlakyWriter, Stage, change
from tests.services.ingest.connectors.test_intake import on_a_stage
from tests.virtual_time import run_virtual


@on_a_stage
async def test_one_that_runs_does_not_go_on_at_now_where_its_positions_are_lost(
    stage: Stage,
) -> None:
    """It has begun, whether or not it has heard from the coordinator that this is known."""
    stage.history.commit(*(change(number) for number in range(20)))
    await stage.until(lambda: not stage.behind())
    stage.history.is_away = True
    await stage.until_state("retrying")
    stage.history.commit(*(change(number) for number in range(20, 40)))
    for partition in stage.log.partitions.values():
        partition.intakes.clear()
    stage.history.is_away = False
    said = await stage.until_state("history-lost")
    assert "none of its positions is stored" in said.error


@on_a_stage
async def test_a_skip_that_a_repartition_interrupts_ends_behind_it(stage: Stage) -> None:
    """Some partitions of the former version have the record that says so, and some of the new one
    need none: they go on all the same."""
    stage.history.too_large.add(f"{11:012d}")
    stage.history.commit(*(change(number) for number in range(1, 31)))
    said = await stage.until_state("stopped")
    writer = stage.writers[TWO]
    writer.take_in = _without_markers(writer)  # type: ignore[method-assign]
    stage.connector = replace(stage.connector, skip=said.stopped_at)
    await stage.publish()
    await stage.until_state("retrying")
    del writer.take_in
    await stage.repartition(6)
    await stage.until(lambda: not stage.behind(), timeout_s=20)
    await asyncio.sleep(5)
    assert len([one for one in stage.records() if one.op != "lost"]) == 29
    lost = {(one.version, one.partition) for one in stage.records() if one.op == "lost"}
    assert lost == {(1, 0), (1, 2), (2, 1), (2, 3), (2, 5)}, "once for every key"


@on_a_stage
async def test_a_topic_that_comes_back_with_fewer_partitions_is_noticed(stage: Stage) -> None:
    """Deleted and created again before the node hears of either: the same version, and a partition
    that has no owner any more."""
    for partition in stage.log.partitions.values():
        partition.drop_records(5)
    stage.owners = {number: (name, 6) for number, (name, _) in stage.owners.items()}
    stage.topic = Topic("orders", 2)
    await stage.publish()
    last = next(one for one in map(change, range(100)) if _place(one, 4) == 3)
    stage.history.commit(last)
    await stage.until_state("history-lost")


@on_a_stage
async def test_an_older_topology_ends_no_reader(stage: Stage) -> None:
    older = replace(stage.topology(), intakes=())
    await stage.publish()
    await stage.until_state("running")
    stage.coordinators[ONE].push(older)
    await asyncio.sleep(2)
    stage.history.commit(change(1))
    await stage.until(lambda: not stage.behind())


@on_a_stage
async def test_a_topology_that_comes_during_a_stop_starts_nothing(stage: Stage) -> None:
    node = stage.nodes.pop(ONE)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(node.stop())
        await asyncio.sleep(0)
        stage.coordinators[ONE].push(stage.topology())
    await asyncio.sleep(1)
    assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("connector")]


@on_a_stage
async def test_readers_that_do_not_end_hold_a_topology_up_once(stage: Stage) -> None:
    """And not each for itself: the node opens no partition meanwhile."""
    names = [f"{NAME}-{number}" for number in range(6)]
    said = stage.topology()
    connectors = tuple(replace(stage.connector, name=name) for name in names)
    intakes = tuple(Owner(PartitionRef(name, 0), ONE, 1) for name in names)
    stage.origin = _Unending
    stage.coordinators[ONE].push(replace(said, connectors=connectors, intakes=intakes))
    await asyncio.sleep(5)
    began_s = asyncio.get_running_loop().time()
    await stage.publish()
    assert asyncio.get_running_loop().time() - began_s < 1.5 * CLOSE_TIMEOUT_S


def test_more_partitions_are_claimed_than_may_wait_at_once() -> None:
    """A node takes so many requests at a time, and a connector leaves room for others."""

    async def scenario(waiting: int) -> int:
        stage = Stage()
        stage.writing = WritingOptions(bounds=WriteBounds(requests=waiting))
        stage.topic = Topic("orders", 64)
        stage.owners = dict.fromkeys(range(64), (ONE, 1))
        await stage.start(ONE)
        await stage.publish()
        await stage.until_state("running")
        await asyncio.sleep(5)
        await stage.stop()
        return stage.writers[ONE].most_at_once

    assert run_virtual(scenario(2)) == 2
    assert run_virtual(scenario(1_000)) == AT_ONCE


@pytest.mark.parametrize("moves", [False, True], ids=["the same reader", "the next one"])
def test_a_partition_that_has_lost_its_position_says_so(moves: bool) -> None:
    """Others are ahead of where it was, and nobody knows where that is: what it lacks is said."""

    async def scenario() -> None:
        stage = Stage(1)
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        stage.history.commit(*(change(number) for number in range(20)))
        await stage.until(lambda: not stage.behind())
        store = stage.log.partition(PartitionRef("orders", 1))
        store.state = replace(store.state, sealed=True)
        stage.history.commit(*(change(number) for number in range(20, 60)))
        await stage.until_state("retrying")
        await asyncio.sleep(1)
        store.intakes.clear()
        if moves:
            stage.connector = replace(stage.connector, begun=True)
            stage.move_connector(ONE)
            await stage.publish()
        store.state = replace(store.state, sealed=False)
        await stage.until_state("running")
        await asyncio.sleep(5)
        assert stage.behind(), "some of them are nowhere"
        [at] = [at for at, one in enumerate(store.records) if one.op == "lost"]
        assert all((one.source or "") <= f"{20:012d}" for one in store.records[:at])
        assert all((one.source or "") > f"{20:012d}" for one in store.records[at:])
        assert [one.op for one in stage.records()].count("lost") == 1, "the others lack nothing"
        await stage.stop()

    run_virtual(scenario())


def test_one_that_has_lost_its_position_while_nothing_was_read_says_so() -> None:
    """No batch meets the gap, and its only sibling stands where it could have begun: the reader
    knows that it had begun long before, whatever it heard from the coordinator."""

    async def scenario() -> None:
        stage = Stage(1)
        stage.topic = Topic("orders", 2)
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        stage.history.commit(*(change(number) for number in range(20)))
        await stage.until(lambda: not stage.behind())
        stage.history.is_away = True
        await stage.until_state("retrying")
        stage.log.partition(PartitionRef("orders", 1)).intakes.clear()
        stage.history.is_away = False
        await stage.until_state("running")
        await asyncio.sleep(5)
        lost = [one.partition for one in stage.records() if one.op == "lost"]
        assert lost == [1]
        await stage.stop()

    run_virtual(scenario())


@on_a_stage
async def test_a_partition_that_no_plan_fits_is_said_and_waited_for(stage: Stage) -> None:
    """Such as where the coordinator was put back to before a repartition, and the store wasn't."""
    store = stage.log.partition(PartitionRef("orders", 1))
    store.state = replace(store.state, version=7)
    stage.history.commit(*(change(number) for number in range(30)))
    said = await stage.until_state("retrying")
    assert "version 7" in said.error
    opened = stage.opened
    await asyncio.sleep(60)
    assert stage.opened - opened < 120, "no faster than twice a second"
    store.state = replace(store.state, version=1)
    await stage.until(lambda: not stage.behind())
    await stage.until_state("running")


def test_a_drop_that_a_repartition_interrupts_stays_before_what_follows_it() -> None:
    """It stands once more in the new version, for keys whose partition lacked it; the others'
    partition hasn't gone on without them."""

    async def scenario() -> None:
        stage = Stage()
        stage.origin = _InOneBatch
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        store = stage.log.partition(PartitionRef("orders", 2))
        store.state = replace(store.state, sealed=True)
        ahead = next(one for one in map(change, range(100)) if _place(one, 4) == 0)
        stage.history.commit(Event("drop", b"null", None, "drop", "orders"), ahead)
        await stage.until_state("retrying")
        await asyncio.sleep(1)
        await stage.repartition(6)
        await stage.until(lambda: not stage.behind())
        await asyncio.sleep(5)
        places = {(1, _place(ahead, 4)), (2, _place(ahead, 6))}
        mine = [one for one in stage.records() if (one.version, one.partition) in places]
        mine.sort(key=lambda one: (one.version, one.seq))
        assert [one.op for one in mine] == ["drop", "drop", "update"]
        await stage.stop()

    run_virtual(scenario())


@on_a_stage
async def test_a_reset_that_the_coordinator_has_forgotten_is_asked_for_again(stage: Stage) -> None:
    """It was put back to before that; the partitions weren't."""
    forgotten = replace(stage.connector, begun=True)
    stage.reset_connector("now")
    await stage.publish()
    await stage.until_state("running")
    await stage.until(lambda: (said := stage.report()) is not None and said.epoch == 2)
    stage.connector = forgotten
    stage.move_connector(ONE)
    await stage.publish()
    said = await stage.until_state("waiting")
    assert f"headgate connector reset {NAME}" in said.error


@pytest.mark.parametrize("dies", [False, True], ids=["at once", "by the next reader"])
def test_one_that_begins_behind_where_it_was_says_so_in_every_partition(dies: bool) -> None:
    """An operator's reset leaves changes out: nobody behind the log has heard of that. A reader
    that dies between its claims and its first position leaves that to the next one."""

    async def scenario() -> None:
        stage = Stage(1)
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        stage.history.commit(*(change(number) for number in range(20)))
        await stage.until(lambda: not stage.behind())
        stage.connector = replace(stage.connector, paused=True)
        await stage.publish()
        stage.history.commit(*(change(number) for number in range(20, 40)))
        stage.connector = replace(stage.connector, paused=False)
        stage.reset_connector("position:30")
        if dies:
            stage.history.is_away = True
            await stage.publish()
            await stage.until_state("retrying")
            stage.move_connector(TWO)
            stage.history.is_away = False
        await stage.publish()
        left_out = {f"{number:012d}" for number in range(21, 31)}
        await stage.until(lambda: stage.behind() == left_out - {f"{30:012d}"})
        lost = [one for one in stage.records() if one.op == "lost"]
        assert [(one.partition, one.source) for one in lost] == [
            (number, f"{30:012d}") for number in range(4)
        ]
        for number in range(4):
            mine = [one.source for one in stage.records() if one.partition == number]
            assert mine == sorted(mine, key=str), "in its place"
        await stage.repartition(6)
        stage.history.commit(*(change(number) for number in range(40, 60)))
        await stage.until(lambda: stage.behind() == left_out - {f"{30:012d}"})
        assert [one.op for one in stage.records()].count("lost") == 4, "said once"
        await stage.stop()

    run_virtual(scenario())


@on_a_stage
async def test_one_that_begins_before_where_it_was_leaves_nothing_out(stage: Stage) -> None:
    stage.history.commit(*(change(number) for number in range(20)))
    await stage.until(lambda: not stage.behind())
    await asyncio.sleep(5)
    stage.reset_connector("position:10")
    await stage.publish()
    await stage.until(lambda: len(stage.records()) == 30)
    assert "lost" not in {one.op for one in stage.records()}


class _InOneBatch(MemoryOrigin):
    def __init__(self, history: MemoryHistory, **_: Any) -> None:
        super().__init__(history)


class _Unending(MemoryOrigin):
    async def close(self) -> None:
        await asyncio.sleep(60)


def _place(event: Event, count: int) -> int:
    return partition_of(event.key or "", collection=event.collection, count=count)


def _without_markers(writer: FlakyWriter) -> Any:
    """Its disk is full when there is a change to be left out."""
    take_in = writer.take_in

    async def failing(
        ref: PartitionRef, mark: IntakeMark, events: Sequence[Event], **more: Any
    ) -> Taken:
        if any(one.op == "lost" for one in events):
            raise StorageFailed("the disk is full")
        return await take_in(ref, mark, events, **more)

    return failing


@pytest.mark.parametrize("how", ["the origin cut it off", "no position is stored"])
def test_a_history_that_is_lost_is_said_of_one_that_rests(how: str) -> None:
    """Or who pauses it meanwhile sees a connector that only waits for `resume`."""

    async def scenario() -> None:
        stage = Stage()
        await stage.start(ONE, TWO)
        await stage.publish()
        stage.history.commit(*(change(number) for number in range(20)))
        await stage.until(lambda: not stage.behind())
        stage.history.is_away = True
        await stage.until_state("retrying")
        stage.history.commit(*(change(number) for number in range(20, 40)))
        stage.history.lose(30)
        if how == "no position is stored":
            for partition in stage.log.partitions.values():
                partition.intakes.clear()
        stage.history.is_away = False
        before = await stage.until_state("history-lost")
        stage.connector = replace(stage.connector, paused=True, begun=True)
        for moves in (False, True):
            if moves:
                stage.move_connector(TWO)
            await stage.publish()
            await asyncio.sleep(5)
            said = stage.report()
            assert said is not None
            assert (said.state, said.stopped_at) == ("history-lost", before.stopped_at)
            assert f"headgate connector reset {NAME}" in said.error
        stage.reset_connector("position:35")
        await stage.publish()
        await stage.until_state("paused")
        await asyncio.sleep(5)
        await stage.until_state("paused")
        stage.connector = replace(stage.connector, paused=False)
        await stage.publish()
        await stage.until_state("running")
        await stage.stop()

    run_virtual(scenario())


class _LosingACancellation(MemoryOrigin):
    """As drivers do that wait with `asyncio.wait_for` of Python 3.11: one that comes just when they
    have something to go on with is lost."""

    lost = 0

    @contextlib.asynccontextmanager
    async def open(  # type: ignore[override]
        self, after: str, *, begin_at: str, level: str = ""
    ) -> AsyncIterator[ChangeStream]:
        async with super().open(after, begin_at=begin_at, level=level) as stream:
            following = stream.next

            async def next_(patience_s: float = PATIENCE_S) -> Changes:
                try:
                    return await following(patience_s)
                except asyncio.CancelledError:
                    if self.lost:
                        raise
                    self.lost += 1
                    return await following(patience_s)

            stream.next = next_  # type: ignore[method-assign]
            yield stream


def test_a_reader_whose_end_the_driver_has_lost_ends_all_the_same() -> None:
    """Paused, it would go on reading, and nobody would tell it anything any more."""

    async def scenario() -> None:
        stage = Stage()
        stage.origin = _LosingACancellation
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        await asyncio.sleep(1)
        stage.connector = replace(stage.connector, paused=True)
        await stage.publish()
        await stage.until_state("paused")
        stage.history.commit(*(change(number) for number in range(20)))
        await asyncio.sleep(10)
        assert len(stage.behind()) == 20
        stage.connector = replace(stage.connector, paused=False)
        await stage.publish()
        await stage.until(lambda: not stage.behind())
        stage.judge(stage.history.changes)
        await stage.stop()

    run_virtual(scenario())


@pytest.mark.parametrize("paused", [True, False])
def test_a_topic_that_was_made_anew_says_that_its_connector_lost_its_place(paused: bool) -> None:
    """Deleted and created again, with nothing of what was there: it doesn't begin at now."""

    async def scenario() -> None:
        stage = Stage()
        await stage.start(ONE, TWO)
        await stage.publish()
        stage.history.commit(*(change(number) for number in range(20)))
        await stage.until(lambda: not stage.behind())
        stage.connector = replace(stage.connector, paused=paused, begun=True)
        await stage.publish()
        for partition in stage.log.partitions.values():
            partition.drop_records(5)
        stage.owners = {number: (name, 6) for number, (name, _) in stage.owners.items()}
        stage.topic = Topic("orders", 3)
        stage.history.commit(*(change(number) for number in range(20, 40)))
        await stage.publish()
        await stage.until_state("history-lost")
        stage.reset_connector("position:25")
        stage.connector = replace(stage.connector, paused=False)
        await stage.publish()
        await stage.until_state("running")
        await stage.until(lambda: len(stage.records()) >= 15)
        await asyncio.sleep(5)
        sources = sorted(one.source or "" for one in stage.records() if one.op != "lost")
        assert sources == sorted(one.source or "" for one in stage.history.changes[25:])
        await stage.stop()

    run_virtual(scenario())


def test_clocks_that_jump_lose_and_repeat_nothing() -> None:
    """Where it goes on is a position, and no time."""

    async def scenario() -> None:
        stage = Stage(seed=3)
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        for jump_s in (86_400, -2 * 86_400, 86_400 * 365, -86_400 * 365):
            stage.machine.begins_ms += jump_s * 1_000
            stage.history.commit(*(change(number) for number in range(20)))
            stage.move_connector(TWO if stage.connector_at == ONE else ONE)
            await stage.publish()
            await stage.until(lambda: not stage.behind())
        said = await stage.until_state("running")
        assert (said.lag_ms or 0) >= 0
        stage.judge(stage.history.changes)
        await stage.stop()

    run_virtual(scenario())


class _Poisoned(MemoryOrigin):
    """Opens well, and raises at the first change, after a while, whatever `ends_with` is."""

    ends_with: Exception

    @contextlib.asynccontextmanager
    async def open(  # type: ignore[override]
        self, after: str, *, begin_at: str, level: str = ""
    ) -> AsyncIterator[ChangeStream]:
        async with super().open(after, begin_at=begin_at, level=level) as stream:
            following = stream.next

            async def next_(patience_s: float = PATIENCE_S) -> Changes:
                changes = await following(patience_s)
                if any(one.source == f"{1:012d}" for one in changes.events):
                    await asyncio.sleep(2)
                    raise self.ends_with
                return changes

            stream.next = next_  # type: ignore[method-assign]
            yield stream


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(ArithmeticError("inexact"), "died of ArithmeticError", id="of what is a bug"),
        pytest.param(OriginUnavailable("it reports an error"), "reports an error", id="of another"),
    ],
)
def test_a_reader_that_fails_at_the_same_change_again_and_again_is_not_shown_as_running(
    error: Exception, said: str
) -> None:
    """That its origin can be opened each time says nothing: it gets no further."""

    class Poisoned(_Poisoned):
        ends_with = error

    async def scenario() -> None:
        stage = Stage()
        stage.origin = Poisoned
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        stage.history.commit(*(change(number) for number in range(20)))
        assert said in (await stage.until_state("retrying")).error
        before, told = stage.opened, len(stage.coordinators[ONE].sent)
        await asyncio.sleep(60)
        assert stage.opened > before + 2
        since = stage.coordinators[ONE].sent[told:]
        reports = [
            one for each in since if isinstance(each, ConnectorReports) for one in each.reports
        ]
        assert {one.state for one in reports} == {"retrying"}
        stage.origin = MemoryOrigin
        await stage.until(lambda: not stage.behind())
        await stage.until_state("running")
        stage.judge(stage.history.changes)
        await stage.stop()

    run_virtual(scenario())


def test_one_that_rests_says_that_it_has_begun() -> None:
    """Who was paused before that was heard would begin anew at now, without a word, where its
    topics are made anew meanwhile."""

    async def scenario() -> None:
        stage = Stage()
        await stage.start(ONE, TWO)
        await stage.publish()
        assert (await stage.until_state("running")).begun
        stage.connector = replace(stage.connector, paused=True)
        for moves in (False, True):
            if moves:
                stage.move_connector(TWO)
            await stage.publish()
            await stage.until_state("paused")
            await stage.until(lambda: (said := stage.report()) is not None and said.begun)
        await stage.stop()

    run_virtual(scenario())
