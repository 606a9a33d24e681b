"""Where reading begins and ends, for subscribers and Spark readers alike."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.decide.feed.start_positions import (
    Since,
    Start,
    ends_at,
    gaps,
    parse_positions,
    parse_start,
    refuse_gaps,
    since_then,
    starts_after,
)
from headgate.errors import InvalidRequest, NotFound
from headgate.model.topology import FormerVersion, Repartition, Topic
from headgate.ports.log import Extent

STRETCHES = {0: Extent(5, 20), 1: Extent(1, 0), 2: Extent(1, 7)}


@pytest.mark.parametrize(
    ("text", "start"),
    [
        pytest.param("now", "now", id="now"),
        pytest.param("", "now", id="nothing-means-now"),
        pytest.param("earliest", "earliest", id="earliest"),
        pytest.param("0:15", {0: 15}, id="one-position"),
        pytest.param("0:15, 12:1", {0: 15, 12: 1}, id="several-positions"),
    ],
)
def test_a_start_is_understood(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text",
    [
        "latest",
        "0",
        "0:",
        ":1",
        "0:0",
        "-1:1",
        "0:1,",
        "0:1;1:2",
        "0:1,0:2",
        "0:²",
        "0:" + "9" * 19,
    ],
)
def test_a_start_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not understood: write now, earliest, a time"):
        parse_start(text)


def test_positions_may_be_zero_and_must_name_a_partition_once() -> None:
    assert parse_positions("0:0,1:22", "up_to") == {0: 0, 1: 22}
    for text in ("now", "0:1,0:1", "1"):
        with pytest.raises(InvalidRequest, match=f"up_to {text} is not a positions vector"):
            parse_positions(text, "up_to")


@pytest.mark.parametrize(
    ("start", "after"),
    [
        pytest.param("now", {0: 20, 1: 0, 2: 7}, id="now-is-after-the-heads"),
        pytest.param("earliest", {0: 4, 1: 0, 2: 0}, id="earliest-is-what-is-left"),
        pytest.param({0: 10}, {0: 9, 1: 0, 2: 7}, id="unnamed-partitions-begin-now"),
        pytest.param({0: 21, 2: 1}, {0: 20, 1: 0, 2: 0}, id="right-after-the-head"),
        pytest.param({0: 2}, {0: 4, 1: 0, 2: 7}, id="never-before-what-is-left"),
    ],
)
def test_reading_begins_after(start: Start, after: dict[int, int]) -> None:
    assert starts_after(start, STRETCHES, "flights") == after


def test_reading_ends_at_the_named_seqs_and_else_at_the_heads() -> None:
    assert ends_at({}, STRETCHES, "flights") == {0: 20, 1: 0, 2: 7}
    assert ends_at({0: 20, 2: 3}, STRETCHES, "flights") == {0: 20, 1: 0, 2: 3}


def test_positions_outside_the_topic_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="flights has no partition 3: it has 0 to 2"):
        starts_after({3: 1}, STRETCHES, "flights")
    with pytest.raises(InvalidRequest, match="flights has no partition 3: it has 0 to 2"):
        ends_at({3: 1}, STRETCHES, "flights")
    with pytest.raises(InvalidRequest, match="ends at seq 20, so 22 lies beyond its end"):
        starts_after({0: 22}, STRETCHES, "flights")
    with pytest.raises(InvalidRequest, match="ends at seq 20, so 21 isn't there yet"):
        ends_at({0: 21}, STRETCHES, "flights")


def test_a_wanted_record_that_is_gone_is_a_gap() -> None:
    refuse_gaps({0: 5, 1: 1, 9: 1}, STRETCHES, "flights")
    with pytest.raises(NotFound, match="doesn't have the records from 3 to 4 any more"):
        refuse_gaps({0: 3}, STRETCHES, "flights")


class TestSinceThen:
    TOPIC = Topic(
        "flights",
        4,
        version=3,
        after=(9, 9, 3, 0),
        former=(FormerVersion(2, (5, 7, 0), (9, 9, 3)),),
        original=2,
        begins=(0, 0),
    )

    def test_partitions_that_came_later_begin_with_their_first_record(self) -> None:
        assert since_then({0: 6, 1: 8}, self.TOPIC, {}) == {0: 6, 1: 8, 2: 1, 3: 1}

    def test_those_that_are_named_begin_where_that_says(self) -> None:
        assert since_then({0: 6, 2: 3}, self.TOPIC, {}) == {0: 6, 2: 3, 3: 1}

    def test_those_that_were_gone_for_a_while_begin_where_they_came_back(self) -> None:
        shrunk = FormerVersion(2, (5, 7), (9, 9))
        topic = Topic(
            "flights",
            4,
            version=3,
            after=(9, 9, 8, 0),
            former=(FormerVersion(1, (0,) * 3, (5, 7, 8)), shrunk),
            original=3,
            begins=(0,),
        )
        assert since_then({0: 9, 1: 9}, topic, {}) == {0: 9, 1: 9, 2: 9, 3: 1}
        assert since_then({0: 3, 1: 4, 2: 5}, topic, {}) == {0: 3, 1: 4, 2: 5, 3: 1}
        gone = Topic("flights", 2, version=2, after=(5, 7), former=topic.former[:1], original=3)
        assert since_then({0: 9, 1: 9}, gone, {}) == {0: 9, 1: 9}
        coming = replace(gone, repartition=Repartition(3, "announced", 7))
        written = {0: Extent(1, 9), 1: Extent(1, 9), 2: Extent(4, 12)}
        assert since_then({0: 9, 1: 9}, coming, written) == {0: 9, 1: 9, 2: 9}

    def test_now_and_earliest_are_what_they_are(self) -> None:
        assert since_then("now", self.TOPIC, {}) == "now"
        assert since_then("earliest", self.TOPIC, {}) == "earliest"

    def test_a_topic_of_one_version_is_left_alone(self) -> None:
        assert since_then({0: 6}, Topic("flights", 4), STRETCHES) == {0: 6}

    def test_partitions_to_come_begin_with_their_first_record(self) -> None:
        """Somebody has written to them, and it isn't known here yet that they are there."""
        topic = Topic("flights", 1, repartition=Repartition(3, "announced", 7))
        grown = {0: Extent(1, 6), 1: Extent(1, 3), 2: Extent(1, 5)}
        assert since_then({0: 6}, topic, grown) == {0: 6, 1: 1, 2: 1}
        assert since_then({0: 6, 1: 3}, topic, grown) == {0: 6, 1: 3, 2: 1}

    def test_one_that_never_came_is_left_out_where_nothing_of_it_was_seen(self) -> None:
        """Its repartition was given up behind the moment when the positions were saved."""
        topic = Topic("flights", 2)
        assert since_then({0: 6, 1: 8, 2: 1}, topic, {}) == {0: 6, 1: 8}
        assert since_then({0: 6, 1: 8, 2: 2}, topic, {}) == {0: 6, 1: 8, 2: 2}, "and is refused"
        assert since_then({5: 1}, topic, {}) == {5: 1}, "and is refused: nobody ever saved that"

    def test_what_is_gone_of_a_partition_to_come_is_not_passed_over(self) -> None:
        """Whether its first records or all that it had: nobody can have seen them."""
        topic = Topic("flights", 1, repartition=Repartition(3, "announced", 7))
        gone = {0: Extent(1, 6), 1: Extent(3, 4), 2: Extent(6, 5)}
        start = since_then({0: 6}, topic, gone)
        assert isinstance(start, dict)
        assert gaps(start, gone) == {1: (1, 3), 2: (1, 6)}

    def test_one_to_come_again_begins_with_what_is_left_where_nobody_knows_better(self) -> None:
        """It had been there all along, and the version that had it is forgotten with its records:
        whoever began after it was gone was told of it all the same."""
        shrunk = Topic("flights", 1, version=2, after=(5,), original=2)
        coming = replace(shrunk, repartition=Repartition(2, "announced", 7))
        assert since_then({0: 6}, coming, {0: Extent(6, 9), 1: Extent(8, 7)}) == {0: 6, 1: 8}


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800_000),
        ("2026-01-31T12:00:00.250Z", 1_769_860_800_250),
        ("2026-01-31T12:00:00.000001Z", 1_769_860_800_001),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_a_time_is_a_start(text: str, time_ms: int) -> None:
    assert parse_start(text) == Since(time_ms)


@pytest.mark.parametrize(
    "text", ["2026-01-31", "2026-01-31T12:00:00", "2026-13-31T12:00:00Z", "2026-01-31T12:00:00 01"]
)
def test_a_time_without_a_zone_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a time: write it with its date and its zone"):
        parse_start(text)
