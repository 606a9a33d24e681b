"""The judge of the simulation, where it could be wrong by itself."""

from __future__ import annotations

import msgspec
import pytest

from headgate.model.client_messages import Event, Resync
from headgate.model.event import PartitionRef, Record
from tests.sim.oracle import Oracle, Watch

TOPIC = "sightings"
FIRST, SECOND = (0, 4), (2, 1)
"""Where one event is that was written again."""


def written(place: tuple[int, int], event_id: str = "twice", number: int = 7) -> Record:
    document = msgspec.json.encode({"number": number})
    return Record(TOPIC, *place, 1, event_id, None, "", "insert", document, None, None, 0)


def comes(oracle: Oracle, watch: Watch, record: Record) -> None:
    place = record.topic, record.partition, record.seq
    raw = msgspec.Raw(record.document)
    oracle.received(watch, Event(*place, record.event_id, None, "", record.op, raw))


@pytest.fixture
def oracle() -> Oracle:
    """An ingest node died, so an event without a key may be written again elsewhere."""
    oracle = Oracle()
    oracle.nodes_died = True
    return oracle


@pytest.mark.parametrize("place", [FIRST, SECOND], ids=["first", "second"])
def test_of_an_event_that_is_in_the_log_twice_either_place_will_do(
    oracle: Oracle, place: tuple[int, int]
) -> None:
    """Live, a gateway drops the other one (docs/protocol.md)."""
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    for one in (FIRST, SECOND):
        oracle.appended(written(one))
    assert oracle.owed(watch) == [FIRST, SECOND]
    comes(oracle, watch, written(place))
    assert oracle.owed(watch) == []
    assert oracle.violations == []


def test_who_comes_behind_the_first_place_is_owed_the_second(oracle: Oracle) -> None:
    oracle.appended(written(FIRST))
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=False)
    oracle.appended(written(SECOND))
    assert oracle.owed(watch) == [SECOND]


def test_who_did_not_want_it_at_the_first_place_is_owed_the_second(oracle: Oracle) -> None:
    watch = oracle.subscribed("s", TOPIC, lambda _: False, earliest=True)
    oracle.appended(written(FIRST))
    watch.changes(lambda _: True, {FIRST[0]: FIRST[1]})
    oracle.appended(written(SECOND))
    assert oracle.owed(watch) == [SECOND]


def test_who_was_told_that_the_first_place_is_left_out_knows_of_the_event(oracle: Oracle) -> None:
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    for one in (FIRST, SECOND):
        oracle.appended(written(one))
    partition, seq = FIRST
    oracle.received(watch, Resync("", TOPIC, partition, seq - 1, seq + 1, "slow"))
    assert oracle.owed(watch) == []


def test_another_event_is_owed_all_the_same(oracle: Oracle) -> None:
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    oracle.appended(written(FIRST, "one"))
    oracle.appended(written(SECOND, "another"))
    comes(oracle, watch, written(FIRST, "one"))
    assert oracle.owed(watch) == [SECOND]


def test_what_was_deleted_with_its_topic_excuses_nothing(oracle: Oracle) -> None:
    for one in (FIRST, SECOND):
        oracle.appended(written(one))
    for partition, _ in (FIRST, SECOND):
        oracle.deleted(PartitionRef(TOPIC, partition))
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=False)
    oracle.appended(written((1, 1)))
    assert oracle.owed(watch) == [(1, 1)]
