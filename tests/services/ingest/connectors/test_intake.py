"""A connector's reader among ingest nodes: what its origin commits is in the log once, in order.

What each meets, and where:

| beside | what holds | tested by |
|---|---|---|
| another node owns the partition | it is handed in there | `…whoever_owns…` |
| the reader moves, and its former self goes on | fenced, nothing twice | `…former_reader…`, chaos |
| a store that fails, or whose answers get lost | tried again, once in the log | chaos |
| a log partition moves | found again by the topology | chaos |
| a repartition | by key, once, in order, over all versions | `…repartition…`, chaos |
| an origin that is away | goes on where it was | `…away…`, chaos |
| idle partitions | their positions follow | `…idle…` |
| an origin that forgets | it is told of what all partitions have alone | `…may_forget…`, chaos |
| history lost | said once in every partition; goes on after a reset alone | `…lost…` |
| one that lacks what some partition has | the same | `…one_partition_has_alone…` |
| a change that is too large | stops there; skipped, a record says so | `…too_large…` |
| positions gone | never "now" without a word | `…positions_are_gone…` |
| records about a whole collection | in every partition | chaos |
| deleted, unheard by its reader | owners that know take nothing | `…not_heard_of_its_end…` |
| paused | reads nothing, says so | `…paused…` |
| a store that takes its time | what comes meanwhile goes in at once | `…handed_in_at_once` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.model.connector import ConnectorRoute
from headgate.model.control.to_coordinator import ConnectorTooLow
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.ports.log import Taken
from headgate.tasks import deaths
from tests.services.ingest.connectors import intake_stage
from tests.services.ingest.connectors.intake_stage import NAME, ONE, TWO, FlakyWriter, Stage, change
from tests.virtual_time import run_virtual


def on_a_stage(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def staged() -> None:
        stage = Stage()
        await stage.start(ONE, TWO)
        try:
            await stage.publish()
            await stage.until_state("running")
            await scenario(stage)
        finally:
            await stage.stop()
        assert not deaths.counts()

    def test() -> None:
        run_virtual(staged())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


@on_a_stage
async def test_changes_reach_the_log_whoever_owns_the_partition(stage: Stage) -> None:
    stage.history.commit(*(change(number) for number in range(200)))
    await stage.until(lambda: not stage.behind())
    stage.judge(stage.history.changes)
    assert {one.partition for one in stage.records()} == {0, 1, 2, 3}
    await stage.until(lambda: (said := stage.report()) is not None and said.taken == 200)
    said = await stage.until_state("running")
    assert (said.begun, said.error) == (True, "")


@on_a_stage
async def test_an_origin_that_lacks_what_one_partition_has_alone_has_lost_its_history(
    stage: Stage,
) -> None:
    """Where the others stand, it has all: as a standby that was promoted without the very last."""
    stage.history.commit(*(change(number) for number in range(20)))
    await stage.until(lambda: not stage.behind())
    stage.history.commit(change(20))
    await stage.until(lambda: not stage.behind())
    stage.history.is_away = True
    stage.history.take_back(1)
    await stage.until_state("retrying")
    stage.history.is_away = False
    await stage.until_state("history-lost")
    assert {one.partition for one in stage.records() if one.op == "lost"} == {0, 1, 2, 3}


class LargeBatches(Random):
    def randint(self, a: int, b: int) -> int:
        return max(a, b)


def test_what_comes_while_a_change_is_handed_in_is_handed_in_at_once() -> None:
    """What was read too early would have a turn of its own, and the others would wait for it."""

    async def scenario() -> None:
        turns: list[list[str]] = []
        busy, go_on = asyncio.Event(), asyncio.Event()

        class SlowWriter(FlakyWriter):
            async def take_in(
                self,
                ref: PartitionRef,
                mark: IntakeMark,
                events: Sequence[Event],
                *,
                version: int,
                now_ms: int,
            ) -> Taken:
                if events:
                    turns.append([one.event_id for one in events])
                    busy.set()
                    await go_on.wait()
                return await super().take_in(ref, mark, events, version=version, now_ms=now_ms)

        stage = Stage()
        stage.chance = LargeBatches()
        with pytest.MonkeyPatch.context() as slow:
            slow.setattr(intake_stage, "FlakyWriter", SlowWriter)
            await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        stage.history.commit(change(0))
        await busy.wait()
        for number in (6, 12, 18):
            stage.history.commit(change(number))
            await asyncio.sleep(1)
        go_on.set()
        await stage.until(lambda: not stage.behind())
        assert turns == [["e0"], ["e6", "e12", "e18"]]
        await stage.stop()

    run_virtual(scenario())


@on_a_stage
async def test_what_was_committed_before_the_beginning_is_not_read(stage: Stage) -> None:
    """The stage's connector begins at now, which was before this."""
    stage.history.commit(change(1))
    await stage.until(lambda: not stage.behind())
    stage.reset_connector("now")
    await stage.publish()
    await stage.until_state("running")
    stage.history.commit(change(2))
    await stage.until(lambda: not stage.behind())
    assert [one.event_id for one in stage.records()].count("e1") == 1


@on_a_stage
async def test_a_former_reader_that_goes_on_writes_nothing_twice(stage: Stage) -> None:
    stage.history.commit(*(change(number) for number in range(50)))
    stage.move_connector(TWO)
    await stage.publish(TWO)
    stage.history.commit(*(change(number) for number in range(50, 100)))
    await stage.until(lambda: not stage.behind())
    await asyncio.sleep(5)
    stage.judge(stage.history.changes)
    assert ConnectorTooLow(NAME, 2, own=1) in stage.coordinators[ONE].sent


@on_a_stage
async def test_a_reader_that_comes_back_begins_at_the_lowest_position(stage: Stage) -> None:
    stage.history.commit(*(change(number) for number in range(30)))
    await stage.nodes[ONE].stop()
    await stage.start(ONE)
    stage.owners = {number: (name, 2) for number, (name, _) in stage.owners.items()}
    stage.move_connector(TWO)
    await stage.publish()
    stage.history.commit(*(change(number) for number in range(30, 60)))
    await stage.until(lambda: not stage.behind())
    stage.judge(stage.history.changes)


@pytest.mark.parametrize("counts", [(6,), (2,), (1,), (8, 3), (3, 8, 4)], ids=str)
def test_a_repartition_loses_and_repeats_nothing(counts: tuple[int, ...]) -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.history.keeps_stored = False
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        number = 0
        for to in counts:
            for _ in range(3):
                stage.history.commit(*(change(number + n, keys=23) for n in range(37)))
                number += 37
                await asyncio.sleep(0.03)
            await stage.repartition(to)
        stage.history.commit(*(change(number + n, keys=23) for n in range(37)))
        await stage.until(lambda: not stage.behind())
        await asyncio.sleep(5)
        stage.judge(stage.history.changes)
        await stage.stop()

    run_virtual(scenario())


@on_a_stage
async def test_a_repartition_while_it_is_paused_is_crossed_later(stage: Stage) -> None:
    stage.history.commit(*(change(number, keys=23) for number in range(100)))
    await asyncio.sleep(0.1)
    stage.connector = replace(stage.connector, paused=True, begun=True)
    await stage.publish()
    await stage.repartition(6)
    stage.history.commit(*(change(number, keys=23) for number in range(100, 200)))
    await stage.repartition(3)
    stage.connector = replace(stage.connector, paused=False)
    await stage.publish()
    await stage.until(lambda: not stage.behind())
    stage.judge(stage.history.changes)


@on_a_stage
async def test_an_origin_that_is_away_is_tried_again(stage: Stage) -> None:
    stage.history.is_away = True
    said = await stage.until_state("retrying")
    assert "can't be reached" in said.error
    stage.history.commit(change(1))
    stage.history.is_away = False
    await stage.until(lambda: not stage.behind())
    await stage.until_state("running")


@on_a_stage
async def test_positions_of_idle_partitions_follow(stage: Stage) -> None:
    """Or a partition that nothing belongs into would hold the origin's history for ever."""
    stage.history.commit(*(change(number, keys=1) for number in range(50)))
    await asyncio.sleep(10)
    for number in range(4):
        [stored] = stage.log.partition(PartitionRef("orders", number)).taken_in(NAME)
        assert int(stored.position) == 50


@on_a_stage
async def test_an_origin_may_forget_what_every_partition_has_and_nothing_else(
    stage: Stage,
) -> None:
    """Whoever comes next begins at the lowest position that is stored."""
    stage.history.keeps_stored = False
    await stage.until(lambda: stage.history.stored == stage.history.head)
    for number in range(40):
        stage.history.commit(change(number, keys=1))
        await asyncio.sleep(0.05)
        if number % 10 == 9:
            stage.move_connector((ONE, TWO)[number % 20 == 9])
            await stage.publish()
    await stage.until(lambda: not stage.behind())
    stage.judge(stage.history.changes)
    await stage.until(lambda: stage.history.stored == stage.history.head)


@on_a_stage
async def test_history_that_is_lost_is_said_once_in_every_partition(stage: Stage) -> None:
    stage.history.commit(*(change(number) for number in range(20)))
    await stage.until(lambda: not stage.behind())
    await asyncio.sleep(5)
    stage.connector = replace(stage.connector, paused=True, begun=True)
    await stage.publish()
    stage.history.commit(*(change(number) for number in range(20, 40)))
    stage.history.lose(30)
    stage.connector = replace(stage.connector, paused=False)
    await stage.publish()
    said = await stage.until_state("history-lost")
    assert f"headgate connector reset {NAME}" in said.error
    stage.move_connector(TWO)
    await stage.publish()
    await stage.until_state("history-lost")
    lost = [one for one in stage.records() if one.op == "lost"]
    assert sorted(one.partition for one in lost) == [0, 1, 2, 3], "each once"
    stage.reset_connector("position:30")
    await stage.publish()
    await stage.until(lambda: not stage.behind())
    after = [one for one in stage.records() if one.op != "lost"]
    assert len(after) == 30


@on_a_stage
async def test_a_change_that_is_too_large_stops_it_until_it_is_skipped(stage: Stage) -> None:
    stage.history.too_large.add(f"{11:012d}")
    stage.history.commit(*(change(number) for number in range(1, 31)))
    said = await stage.until_state("stopped")
    assert (said.stopped_at, said.stopped_what) == (f"{11:012d}", "a large change")
    assert len(stage.records()) == 10, "what came before it is there"
    stage.connector = replace(stage.connector, skip=said.stopped_at)
    await stage.publish()
    await stage.until(lambda: not stage.behind())
    lost = [one for one in stage.records() if one.op == "lost"]
    assert {one.source for one in lost} == {f"{11:012d}"}
    assert sorted(one.partition for one in lost) == [0, 1, 2, 3]
    assert len([one for one in stage.records() if one.op != "lost"]) == 29


@on_a_stage
async def test_a_document_beyond_the_limit_stops_it_too(stage: Stage) -> None:
    large = replace(change(2), document=b'"%s"' % (b"x" * (17 * 1024 * 1024)))
    stage.history.commit(change(1), large, change(3))
    said = await stage.until_state("stopped")
    assert "ingest.max_document" in said.error
    assert said.stopped_what == "update of orders k2"
    stage.connector = replace(stage.connector, skip=said.stopped_at)
    await stage.publish()
    await stage.until(lambda: not stage.behind())
    assert {one.event_id for one in stage.records() if one.op != "lost"} == {"e1", "e3"}


@on_a_stage
async def test_a_document_that_goes_nowhere_may_be_as_large_as_it_likes(stage: Stage) -> None:
    large = replace(change(2), document=b'"%s"' % (b"x" * (17 * 1024 * 1024)), collection="drafts")
    stage.history.commit(change(1), large, change(3))
    await stage.until(lambda: {one.event_id for one in stage.records()} == {"e1", "e3"})


@on_a_stage
async def test_where_its_positions_are_gone_it_does_not_go_on_at_now(stage: Stage) -> None:
    stage.connector = replace(stage.connector, paused=True, begun=True)
    await stage.publish()
    for partition in stage.log.partitions.values():
        partition.intakes.clear()
    stage.connector = replace(stage.connector, paused=False)
    await stage.publish()
    said = await stage.until_state("history-lost")
    assert "none of its positions is stored" in said.error


@on_a_stage
async def test_one_that_is_paused_reads_nothing_and_says_so(stage: Stage) -> None:
    stage.connector = replace(stage.connector, paused=True)
    await stage.publish()
    await stage.until_state("paused")
    stage.history.commit(change(1))
    await asyncio.sleep(10)
    assert stage.behind()


@on_a_stage
async def test_how_far_behind_it_is_is_known_while_it_rests(stage: Stage) -> None:
    """Or nobody is warned before its history is lost."""
    stage.history.commit(change(1))
    await stage.until(lambda: not stage.behind())
    await asyncio.sleep(5)
    stage.connector = replace(stage.connector, paused=True)
    await stage.publish()
    stage.history.commit(*(change(number) for number in range(2, 42)))
    await stage.until(lambda: _shown(stage) == ("paused", 40, 40_000, 60_000))
    stage.history.is_away = True
    await stage.until(lambda: _shown(stage) == ("paused", None, None, None))
    stage.history.is_away = False
    stage.connector = replace(stage.connector, paused=False)
    await stage.publish()
    await stage.until(lambda: not stage.behind())
    await stage.until(lambda: _shown(stage) == ("running", 0, 0, 60_000))


@pytest.mark.parametrize(
    "why", ["the log takes nothing", "a change is too large", "an owner is away"]
)
def test_how_far_behind_it_is_is_known_while_it_gets_no_further(why: str) -> None:
    """What it read last is of no help there: that was when all was well."""

    async def scenario() -> None:
        stage = Stage()
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        if why == "a change is too large":
            stage.history.too_large.add(f"{1:012d}")
        elif why == "an owner is away":
            stage.connector_at, stage.owners[0] = TWO, ("nobody", 2)
            stage.connector_epoch += 1
            await stage.publish()
        else:
            for number in range(4):
                store = stage.log.partition(PartitionRef("orders", number))
                store.state = replace(store.state, sealed=True)
        stage.history.commit(*(change(number) for number in range(40)))
        state = "stopped" if why == "a change is too large" else "retrying"
        await stage.until_state(state)
        await stage.until(lambda: _shown(stage)[2] is not None and _shown(stage)[2] >= 20_000)
        stage.history.commit(*(change(number) for number in range(40)))
        await stage.until(lambda: _shown(stage)[2] >= 60_000)
        assert _shown(stage)[0] == state
        await stage.stop()

    run_virtual(scenario())


def _shown(stage: Stage) -> tuple[str, Any, Any, Any]:
    said = stage.report()
    assert said is not None
    return said.state, said.lag_records, said.lag_ms, said.history_ms


@on_a_stage
async def test_a_reader_that_has_not_heard_of_its_end_hands_nothing_in(stage: Stage) -> None:
    """Where the owners have: it may be cut off from the coordinator for long."""
    stage.connector_at = ""
    await stage.publish(TWO)
    stage.history.commit(*(change(number, keys=23) for number in range(50)))
    await asyncio.sleep(10)
    assert stage.records()
    assert {one.partition for one in stage.records()} <= {0, 2}, "those of the node that is cut off"


@on_a_stage
async def test_it_waits_for_a_topic_that_is_not_there(stage: Stage) -> None:
    stage.connector = replace(stage.connector, routes=(ConnectorRoute("*", "elsewhere"),))
    await stage.publish()
    said = await stage.until_state("waiting")
    assert "elsewhere" in said.error


@on_a_stage
async def test_collections_that_no_route_leads_to_are_counted(stage: Stage) -> None:
    stage.history.commit(replace(change(1), collection="drafts"), change(2))
    await stage.until(lambda: len(stage.records()) == 1)
    await stage.until(lambda: (said := stage.report()) is not None and said.left_out == 1)


SEEDS = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_at_once(seed: int) -> None:
    """Commits, stores that fail, readers that move and go on, partitions that move, repartitions
    and an origin that comes and goes, by chance; then everything is mended, and judged."""

    async def scenario() -> None:
        stage, chance = Stage(seed), Random(seed)
        stage.history.keeps_stored = seed % 2 == 0
        await stage.start(ONE, TWO)
        await stage.publish()
        number = 0
        for _ in range(40):
            for _ in range(chance.randint(0, 4)):
                number += 1
                drop = chance.random() < 0.05
                stage.history.commit(
                    Event(f"e{number}", b"null", None, "drop", "orders")
                    if drop
                    else change(number, keys=11)
                )
            await _happens(stage, chance)
            await asyncio.sleep(chance.random() * 0.4)
        for writer in stage.writers.values():
            writer.fails = 0.0
        stage.history.is_away = False
        await stage.publish()
        await stage.until(lambda: not stage.behind())
        await asyncio.sleep(10)
        stage.judge(stage.history.changes)
        assert stage.history.stored == stage.history.head
        await stage.stop()
        assert not deaths.counts()

    run_virtual(scenario())


async def _happens(stage: Stage, chance: Random) -> None:
    match chance.choice(("faults", "move", "zombie", "log", "away", "repartition", "quiet")):
        case "faults":
            for writer in stage.writers.values():
                writer.fails = chance.choice((0.0, 0.1, 0.4))
        case "move":
            stage.move_connector(chance.choice((ONE, TWO)))
            await stage.publish()
        case "zombie":
            to = chance.choice((ONE, TWO))
            stage.move_connector(to)
            await stage.publish(to)
        case "log":
            number = chance.randrange(stage.topic.partitions)
            owner, epoch = stage.owners[number]
            stage.owners[number] = (TWO if owner == ONE else ONE, epoch + 1)
            await stage.publish()
        case "away":
            stage.history.is_away = not stage.history.is_away
        case "repartition" if chance.random() < 0.4:
            counts = [count for count in (1, 2, 3, 4, 6, 8) if count != stage.topic.partitions]
            await stage.repartition(chance.choice(counts))
        case _:
            pass
