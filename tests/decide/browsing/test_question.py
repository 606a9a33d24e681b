"""What somebody wants to see of a topic, from the parameters of a request; and cursors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.browsing import cursor as cursors
from headgate.decide.browsing.cursor import BrowseCursor
from headgate.decide.browsing.question import question_of
from headgate.decide.feed.start_positions import Since
from headgate.errors import InvalidRequest

CURSOR = cursors.written(BrowseCursor("t", "backward", {0: 7, 3: 1}, 3))


@pytest.mark.parametrize(
    ("parameters", "start", "direction"),
    [
        ({}, "now", "backward"),
        ({"direction": "forward"}, "earliest", "forward"),
        ({"from": "earliest"}, "earliest", "forward"),
        ({"from": "now"}, "now", "forward"),
        ({"from": "2026-01-31T12:00:00Z"}, Since(1769860800000), "forward"),
        ({"from": "0:1", "direction": "backward"}, {0: 1}, "backward"),
        ({"from": "0:15,1:22"}, {0: 15, 1: 22}, "forward"),
        ({"cursor": CURSOR}, "now", "backward"),
    ],
)  # fmt: skip
def test_where_it_begins(parameters: dict[str, str], start: object, direction: str) -> None:
    question = question_of(parameters, topic="t")
    assert (question.start, question.direction) == (start, direction)


def test_what_is_wanted_and_how_much() -> None:
    given_ = {"key": "", "partition": "3", "limit": "7", "max_bytes": "99", "timeout": "20ms",
              "where": "a == 1", "collection": "c"}  # fmt: skip
    question = question_of(given_, topic="t")
    assert (question.key, question.partition, question.limit) == ("", 3, 7)
    assert (question.max_bytes, question.timeout_ms) == (99, 20)
    assert (question.where, question.collection, question.cursor) == ("a == 1", "c", None)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"form": "now"}, "form"),
        ({"direction": "sideways"}, "direction"),
        ({"from": "yesterday"}, "from"),
        ({"partition": "-1"}, "partition"),
        ({"partition": "1024"}, "partition"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"max_bytes": "8388609"}, "max_bytes"),
        ({"timeout": "11s"}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"cursor": CURSOR, "from": "now"}, "cursor"),
        ({"cursor": CURSOR, "direction": "backward"}, "cursor"),
        ({"cursor": CURSOR[:-3]}, "cursor"),
        ({"cursor": "***"}, "cursor"),
        ({"cursor": "é"}, "cursor"),
        ({"cursor": cursors.written(BrowseCursor("other", "forward", {}))}, "cursor"),
        ({"cursor": cursors.written(BrowseCursor("t", "forward", {-1: 1}))}, "cursor"),
        ({"cursor": cursors.written(BrowseCursor("t", "forward", {1: -1}))}, "cursor"),
    ],
)
def test_what_is_not_understood_is_named(parameters: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        question_of(parameters, topic="t")
    assert refused.value.details["parameter"] == named


@given(
    st.text(max_size=20),
    st.dictionaries(st.integers(0, 1_023), st.integers(0, 2**63 - 1)),
    st.integers(0, 1_023),
)
def test_a_cursor_is_read_as_it_was_written(topic: str, at: dict[int, int], turn: int) -> None:
    cursor = BrowseCursor(topic, "forward", at, turn)
    assert cursors.read(cursors.written(cursor), topic=topic) == cursor


@given(st.text(max_size=200))
def test_no_text_is_a_cursor_by_accident(text: str) -> None:
    with pytest.raises(InvalidRequest):
        cursors.read(text, topic="no such topic")
