"""Where a snapshot goes on, and what stands before a connector began anew."""

from __future__ import annotations

import pytest

from headgate.decide.connectors.plan import plan
from headgate.decide.connectors.rules import begin_at, settings_refusal
from headgate.decide.connectors.snapshots.missing_keys import Divide
from headgate.decide.connectors.snapshots.places import of_stream, place_of
from headgate.decide.connectors.snapshots.snapshotting import (
    SnapshotProgress,
    SnapshotSteps,
    next_snapshot,
    progress_from,
)
from headgate.model.connector import Connector, ConnectorRoute, Snapshot
from headgate.model.event import Op, PartitionRef, Record
from headgate.model.intake import IntakePosition
from headgate.model.topology import Topic

TOPIC = Topic("orders", 2)
CONNECTOR = Connector("shop", "mongodb", (ConnectorRoute("*", "orders"),), {}, beginning=1)
FIRST, SECOND = PartitionRef("orders", 0), PartitionRef("orders", 1)


def at(step: int, *, snapshot: int = 5) -> SnapshotProgress:
    return SnapshotProgress(snapshot, step, collection="items", behind=f"k{step}")


def stored(position: str, progress: SnapshotProgress) -> list[IntakePosition]:
    return [IntakePosition(1, 2, 7, 1, position, False, str(progress))]


@pytest.mark.parametrize(
    ("least", "furthest"),
    [(at(9), at(10)), (at(255), at(256)), (at(900, snapshot=5), at(1, snapshot=6))],
    ids=["step", "digits", "another_snapshot"],
)
def test_a_snapshot_goes_on_where_it_is_least_far(
    least: SnapshotProgress, furthest: SnapshotProgress
) -> None:
    found = plan(CONNECTOR, [TOPIC], {FIRST: stored("b", furthest), SECOND: stored("a", least)})
    assert progress_from(found.snapshots.newest) == least


def test_nothing_is_asked_for_before_the_stream_has_told_all_that_somebody_has() -> None:
    place = place_of("b", epoch=1, chunk=1, row=1)
    found = plan(CONNECTOR, [TOPIC], {FIRST: stored(place, at(1)), SECOND: stored("a", at(1))})
    assert (found.level, found.stored) == ("b", "a")


def test_the_next_snapshot_is_the_first_that_is_wanted_and_not_done() -> None:
    wanted = (Snapshot(4), Snapshot(6), Snapshot(5))
    assert next_snapshot(wanted, "") == (Snapshot(4), SnapshotProgress(4))
    assert next_snapshot(wanted, str(at(3))) == (Snapshot(5), at(3))
    done = SnapshotProgress(5, 9, "done")
    assert next_snapshot(wanted, str(done)) == (Snapshot(6), SnapshotProgress(6))
    assert next_snapshot((Snapshot(5),), str(done)) is None
    assert next_snapshot((), str(at(3))) is None


def test_a_position_has_the_progress_of_the_last_note_before_it() -> None:
    notes = SnapshotSteps("stored")
    notes.add("c", at(1))
    notes.add("e", at(2))
    assert [notes.at(one) for one in "bcdef"] == [
        "stored",
        *[str(at(1))] * 2,
        *[str(at(2))] * 2,
    ]
    notes.settle()
    assert notes.at("a") == notes.newest == str(at(2))


def test_a_place_stands_between_its_position_and_the_next() -> None:
    first = place_of("000041", epoch=3, chunk=1, row=1)
    second = place_of("000041", epoch=3, chunk=1, row=2)
    later = place_of("000041", epoch=4, chunk=1, row=1)
    assert "000041" < first < second < later < "000042"
    assert of_stream(later) == of_stream("000041") == "000041"
    assert begin_at(f"position:{later}", wall_ms=0) == "position:000041"
    assert begin_at(f"000000{later}", wall_ms=0) == "position:000000000041"


def record(partition: int, seq: int, source: str, event_id: str = "") -> Record:
    """A marker where it has an id."""
    op: Op = "lost" if event_id else "insert"
    return Record("orders", partition, seq, 1, event_id, "k", "items", op, b"{}", None, source, 0)


def test_a_partition_without_a_marker_is_divided_by_the_position_of_the_others() -> None:
    divide = Divide("bereft/shop/3/")
    marker = record(0, 2, "m", "bereft/shop/3/m/0")
    former = record(1, 1, "l", "bereft/shop/2/l/1")
    divide.look([record(0, 1, "z"), marker, record(0, 3, "a"), former])
    assert [divide.is_since(one) for one in (record(0, 1, "z"), record(0, 3, "a"))] == [False, True]
    assert [divide.is_since(one) for one in (record(1, 1, "l"), record(1, 9, "n"))] == [False, True]
    assert divide.bounds(FIRST, 9, is_since=True) == (2, 9)
    assert divide.bounds(FIRST, 9, is_since=False) == (0, 2)
    assert divide.bounds(SECOND, 9, is_since=False) == (0, 9)


@pytest.mark.parametrize("wrong", ["0", "-1", "fast", "1.5", "99999999999"])
def test_a_pace_is_a_number_of_rows(wrong: str) -> None:
    settings = {"uri": "mongodb://h/?replicaSet=r", "snapshot_rows_per_s": wrong}
    assert "snapshot_rows_per_s" in str(settings_refusal("mongodb", settings))
    assert settings_refusal("mongodb", settings | {"snapshot_rows_per_s": "5000"}) is None
