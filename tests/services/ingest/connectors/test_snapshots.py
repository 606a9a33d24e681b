"""Snapshots of a connector among ingest nodes: the log's last state of every key is the origin's.

What each meets, and where:

| beside | what holds | tested by |
|---|---|---|
| changes of the same rows | the later state wins | `…beside_the_stream…`, chaos |
| its reader moves, or its former self goes on | gone on with where all partitions are | chaos |
| a repartition | rows by key, over all versions | chaos |
| stores that fail | tried again | chaos |
| an origin that is away | said, and gone on with | `…away…` |
| another snapshot | one after the other | `…one_after_the_other…` |
| paused | nothing is read | `…paused…` |
| a reset | begun anew; one that compares finds what is gone | `…gone…` |
| others' records of the same collection | left alone | `…nobody_elses…` |
| collections without a route, or that aren't there | not read; said | `…route…`, `…never_there…` |
| a collection that goes without a word | missing only where it isn't back | `…without_a_word…` |
| a row that is too large | said; the stream goes on | `…too_large…` |
| it is done already, and the coordinator doesn't know | it is told so | `…told_again…` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

import pytest
from msgspec.structs import replace

from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.decide.connectors.snapshots.places import of_stream
from headgate.errors import StorageFailed
from headgate.model.connector import ConnectorRoute
from headgate.model.event import Event, PartitionRef, Record
from tests.services.ingest.connectors.intake_stage import ONE, TWO, Stage
from tests.services.ingest.connectors.test_intake import on_a_stage
from tests.virtual_time import run_virtual


def row(key: str, number: int, *, of: str = "orders") -> Event:
    return Event(f"{of}/{key}/{number}", b'{"n":%d}' % number, key, "update", of)


def gone(key: str, number: int) -> Event:
    return Event(f"gone/{key}/{number}", b"{}", key, "delete", "orders")


def last_states(stage: Stage, *, of: str = "orders") -> dict[str, bytes]:
    """As somebody has them who has read all of the log."""
    found: dict[str, bytes] = {}
    for record in _in_order(stage.records()):
        if record.collection == of and record.key is not None:
            if record.op == "delete":
                found.pop(record.key, None)
            else:
                found[record.key] = record.document
    return found


def _in_order(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda one: (one.version, one.seq))


def there(stage: Stage, *, of: str = "orders") -> dict[str, bytes]:
    return {key: one for (name, key), one in stage.history.table.items() if name == of}


def judge(stage: Stage) -> None:
    assert last_states(stage) == there(stage)
    committed = [one.source for one in stage.history.changes]
    told = [one.source or "" for one in stage.records() if one.op not in ("read", "lost")]
    told = [one for one in told if "+" not in one]
    assert sorted(told) == committed[len(committed) - len(told) :], "each change once"
    by_key: dict[tuple[str, str | None], list[Record]] = {}
    for record in _in_order(stage.records()):
        by_key.setdefault((record.collection, record.key), []).append(record)
    for (_, key), records in by_key.items():
        sources = [one.source or "" for one in records]
        assert key is None or sources == sorted(set(sources)), key


@on_a_stage
async def test_what_is_there_is_read_beside_the_stream(stage: Stage) -> None:
    stage.history.commit(*(row(f"k{number}", 0) for number in range(40)))
    await stage.until(lambda: not stage.behind())
    stage.reset_connector("now")  # all of that was before it
    stage.take_snapshot()
    await stage.publish()
    for number in range(1, 120):
        stage.history.commit(row(f"k{number % 50}", number))
        await asyncio.sleep(0.005)
    await stage.until_taken()
    await stage.until(lambda: not stage.behind())
    judge(stage)
    reads = [one for one in stage.records() if one.op == "read"]
    assert reads
    assert all(one.source and "+" in one.source for one in reads)
    said = stage.report()
    assert said is not None
    assert "+" not in said.position


@on_a_stage
async def test_the_first_rows_of_a_new_connector_need_no_change_to_come(stage: Stage) -> None:
    """And the position of the stream is told as the origin's."""
    stage.history.commit(*(row(f"k{number}", 0) for number in range(40)))
    await stage.until(lambda: not stage.behind())
    stage.reset_connector("now")
    stage.take_snapshot("orders")
    await stage.publish()
    await stage.until_taken()
    assert {one.key for one in stage.records() if one.op == "read"} == set(there(stage))
    assert {of_stream(one.source or "") for one in stage.records() if one.op == "read"} == {
        "000000000040"
    }


@on_a_stage
async def test_snapshots_are_taken_one_after_the_other(stage: Stage) -> None:
    stage.history.commit(*(row(f"k{number}", 0) for number in range(20)))
    await stage.until(lambda: not stage.behind())
    stage.take_snapshot()
    stage.take_snapshot("orders")
    await stage.publish()
    await stage.until_taken()
    reads = [one.key for one in stage.records() if one.op == "read"]
    assert len(reads) == 40
    assert len(set(reads)) == 20


@on_a_stage
async def test_a_paused_connector_reads_no_rows_and_goes_on_later(stage: Stage) -> None:
    stage.history.commit(*(row(f"k{number}", 0) for number in range(40)))
    await stage.until(lambda: not stage.behind())
    stage.take_snapshot()
    stage.connector = replace(stage.connector, paused=True, begun=True)
    await stage.publish()
    await asyncio.sleep(5)
    assert not [one for one in stage.records() if one.op == "read"]
    stage.connector = replace(stage.connector, paused=False)
    await stage.publish()
    await stage.until_taken()
    judge(stage)


@on_a_stage
async def test_one_that_is_paused_in_the_midst_gives_no_place_out_twice(stage: Stage) -> None:
    """It goes on under the same epoch, where the stream stands still."""
    stage.history.commit(*(row(f"k{number}", 0) for number in range(60)))
    await stage.until(lambda: not stage.behind())
    stage.take_snapshot()
    await stage.publish()
    await stage.until(lambda: any(one.op == "read" for one in stage.records()))
    for paused in (True, False):
        stage.connector = replace(stage.connector, paused=paused)
        await stage.publish()
    assert len({one.key for one in stage.records() if one.op == "read"}) < 60
    await stage.until_taken()
    reads = [one for one in stage.records() if one.op == "read"]
    assert {one.key for one in reads} == set(there(stage))
    assert len({one.event_id for one in reads}) == len(reads)
    judge(stage)


@on_a_stage
async def test_who_rests_behind_the_rows_of_a_snapshot_is_looked_after(stage: Stage) -> None:
    """The origin knows its positions, and no places behind them."""
    stage.history.commit(*(row(f"k{number}", 0) for number in range(20)))
    await stage.until(lambda: not stage.behind())
    stage.take_snapshot()
    await stage.publish()
    await stage.until_taken()
    stage.connector = replace(stage.connector, paused=True, begun=True)
    await stage.publish()
    await stage.until_state("paused")
    await stage.until(lambda: (said := stage.report()) is not None and said.lag_records == 0)


@on_a_stage
async def test_an_origin_that_is_away_is_said_and_gone_on_with(stage: Stage) -> None:
    stage.history.commit(*(row(f"k{number}", 0) for number in range(40)))
    await stage.until(lambda: not stage.behind())
    stage.take_snapshot()
    await stage.publish()
    await stage.until(lambda: any(one.op == "read" for one in stage.records()))
    stage.history.is_away = True
    await stage.until_state("retrying")
    stage.history.is_away = False
    await stage.until_taken()
    judge(stage)


@on_a_stage
async def test_what_leads_nowhere_is_not_read(stage: Stage) -> None:
    """Nor what no route of its leads to; the rest is."""
    stage.history.commit(row("k1", 0), row("k1", 0, of="unrouted"))
    await stage.until(lambda: bool(stage.records()))
    stage.take_snapshot()
    await stage.publish()
    await stage.until_taken()
    assert {one.collection for one in stage.records()} == {"orders"}


@on_a_stage
async def test_a_collection_that_was_never_there_is_named(stage: Stage) -> None:
    stage.history.commit(row("k1", 0))
    stage.take_snapshot("orders", "odrers")
    await stage.publish()
    said = await stage.until_snapshot(lambda said: bool(said.error))
    assert "has no odrers" in said.error
    assert "--cancel" in said.error
    stage.history.commit(row("k2", 0))
    await stage.until(lambda: not stage.behind())
    stage.connector_epoch += 1
    stage.connector = replace(stage.connector, snapshots=())
    await stage.publish()
    await stage.until(lambda: (found := stage.report()) is not None and found.snapshot is None)


def test_a_row_that_is_too_large_is_said_and_the_stream_goes_on() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.history.commit(row("k1", 0))
        stage.history.table["orders", "k0"] = b'"%s"' % (b"x" * 20_000_000)
        await stage.start(ONE, TWO)
        stage.take_snapshot()
        await stage.publish()
        said = await stage.until_snapshot(lambda said: bool(said.error))
        assert "row k0 of orders" in said.error
        assert "ingest.max_document" in said.error
        stage.history.commit(row("k2", 0))
        await stage.until(lambda: any(one.key == "k2" for one in stage.records()))
        stage.history.table["orders", "k0"] = b"{}"
        await stage.until_taken()
        assert {one.key for one in stage.records()} >= {"k0", "k1", "k2"}
        await stage.stop()

    run_virtual(scenario())


@on_a_stage
async def test_a_coordinator_that_forgot_that_it_is_done_is_told_again(stage: Stage) -> None:
    stage.history.commit(*(row(f"k{number}", 0) for number in range(20)))
    await stage.until(lambda: not stage.behind())
    stage.take_snapshot()
    await stage.publish()
    await stage.until_taken()
    reads = len(stage.records())
    stage.move_connector(TWO)
    await stage.publish()
    await stage.until_taken()
    assert len(stage.records()) == reads


@pytest.mark.parametrize("counts", [(), (6,), (1,)], ids=["as_it_is", "more", "fewer"])
def test_what_is_gone_is_found_by_comparing(counts: tuple[int, ...]) -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        stage.history.commit(*(row(f"k{number}", 0) for number in range(60)))
        stage.history.commit(gone("k7", 1), row("k8", 1))
        await stage.until(lambda: not stage.behind())
        for number in range(10, 30):
            stage.history.forget("orders", f"k{number}")
        stage.history.commit(row("k1", 2))
        stage.history.lose(stage.history.head)
        for to in counts:
            await stage.repartition(to)
        stage.reset_connector("now", snapshot=True)
        await stage.publish()
        for number in range(20):
            stage.history.commit(row(f"k{number * 4}", 3 + number))
            await asyncio.sleep(0.01)
        await stage.until_taken()
        await stage.until(lambda: last_states(stage) == there(stage))
        deletes = [one for one in stage.records() if one.op == "delete" and one.key != "k7"]
        assert all(one.document == b'{"n":0}' == one.earlier for one in deletes)
        assert len({one.key for one in deletes}) == len(deletes)
        markers = [one for one in stage.records() if one.op == "lost"]
        assert len(markers) >= stage.topic.partitions
        await stage.stop()

    run_virtual(scenario())


@on_a_stage
async def test_what_is_nobody_elses_business_stays(stage: Stage) -> None:
    """Records of another connector, and of producers, aren't what its origin lacks."""
    stage.history.commit(row("k1", 0), row("k2", 0))
    await stage.until(lambda: not stage.behind())
    ref = PartitionRef("orders", 0)
    await stage.writers[ONE].append(
        ref,
        [Event("another's", b"{}", "another", "insert", "orders", None, "000000000001")],
        version=1,
        now_ms=0,
    )
    stage.history.forget("orders", "k1")
    stage.reset_connector("now", snapshot=True)
    await stage.publish()
    await stage.until_taken()
    deletes = [one.key for one in stage.records() if one.op == "delete"]
    assert deletes == ["k1"]


@on_a_stage
async def test_a_log_that_cannot_be_read_is_tried_again_after_a_while(
    stage: Stage,
) -> None:
    stage.history.commit(row("k1", 0), row("k2", 0))
    await stage.until(lambda: not stage.behind())
    stage.history.forget("orders", "k1")
    tries = 0

    async def fails(*_: object, **__: object) -> list[Record]:
        nonlocal tries
        tries += 1
        raise StorageFailed("the disk is gone; mend it")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(MemoryLogReader, "read", fails)
        stage.reset_connector("now", snapshot=True)
        await stage.publish()
        said = await stage.until_snapshot(lambda said: bool(said.error))
        assert said.compares
        await asyncio.sleep(5)
        assert tries < 50, "it is asked over and over"
    await stage.until_taken()
    assert [one.key for one in stage.records() if one.op == "delete"] == ["k1"]


@on_a_stage
async def test_of_a_collection_that_is_there_and_not_read_any_more_nothing_is_missing(
    stage: Stage,
) -> None:
    stage.history.commit(row("k1", 0))
    await stage.until(lambda: not stage.behind())
    stage.history.unread.add("orders")
    stage.reset_connector("now", snapshot=True)
    await stage.publish()
    await stage.until_taken()
    assert not [one for one in stage.records() if one.op in ("delete", "read")]


@pytest.mark.parametrize("seed", range(12))
def test_everything_at_once(seed: int) -> None:
    async def scenario() -> None:
        chance = Random(seed)
        stage = Stage(seed)
        stage.connector = replace(stage.connector, routes=(ConnectorRoute("orders", "orders"),))
        stage.history.commit(*(row(f"k{number}", 0) for number in range(60)))
        await stage.start(ONE, TWO)
        stage.take_snapshot()
        await stage.publish()
        for number in range(1, 25):
            stage.history.commit(
                *(_any_change(chance, number * 10 + one) for one in range(chance.randrange(6)))
            )
            for writer in stage.writers.values():
                writer.fails = chance.choice((0.0, 0.0, 0.2))
            match chance.randrange(12):
                case 0:
                    stage.move_connector(chance.choice((ONE, TWO)))
                    await stage.publish(chance.choice((ONE, TWO)))
                case 1:
                    for writer in stage.writers.values():
                        writer.fails = 0.0
                    await stage.publish()
                    await stage.repartition(chance.randint(1, 6))
                case 2:
                    stage.take_snapshot()
                    await stage.publish()
                case _:
                    pass
            await asyncio.sleep(chance.random() * 0.3)
        for writer in stage.writers.values():
            writer.fails = 0.0
        await stage.publish()
        await stage.until_taken()
        await stage.until(lambda: last_states(stage) == there(stage))
        judge(stage)
        await stage.stop()

    run_virtual(scenario())


def _any_change(chance: Random, number: int) -> Event:
    key = f"k{chance.randrange(70)}"
    return gone(key, number) if chance.random() < 0.2 else row(key, number)


@pytest.mark.parametrize("then", ["back", "gone", "not read any more"])
def test_what_goes_without_a_word_is_missing_only_where_it_does_not_come_back(then: str) -> None:
    """As a table that is renamed, or taken out of a publication, and put back."""

    @on_a_stage
    async def scenario(stage: Stage) -> None:
        history = stage.history
        history.commit(*(row(f"k{number}", 0) for number in range(40)))
        await stage.until(lambda: not stage.behind())
        stage.reset_connector("now", snapshot=True)
        await stage.publish()
        await stage.until(lambda: any(one.op == "read" for one in stage.records()))
        history.away["orders"] = 2
        before = there(stage)
        if then == "gone":
            history.table.clear()
        elif then == "not read any more":
            history.unread.add("orders")
        await stage.until_taken()
        assert history.away["orders"] == (0 if then == "back" else 1)
        read = {one.key for one in stage.records() if one.op == "read"}
        kept = {key: one for key, one in before.items() if then != "gone" or key in read}
        assert last_states(stage) == kept

    scenario()
