"""Positions sort like the stream, across timelines and database systems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.pgoutput.identity import (
    Position,
    Timelines,
    event_id_of,
    lsn_from,
    position_from,
    timelines_from,
    written,
)
from headgate.errors import OriginRefused

LSNS = st.integers(0, 2**64 - 1)
POSITIONS = st.builds(Position, LSNS, st.integers(1, 2**32 - 1), LSNS, st.integers(0, 2**32 - 1))
HISTORY = "1\t0/3000000\tno recovery target specified\n\n2\t0/5000000\tpromoted\n"


@given(POSITIONS, POSITIONS)
def test_texts_sort_like_positions_and_lead_back(one: Position, other: Position) -> None:
    assert (str(one) < str(other)) == (one < other)
    assert position_from(str(one)) == one


@given(LSNS)
def test_an_lsn_is_read_as_postgresql_writes_it(lsn: int) -> None:
    assert lsn_from(written(lsn)) == lsn


@pytest.mark.parametrize(
    "wrong", ["", "0/16B3748", "x" * 51, "82" + "0" * 40, str(Position(1, 1, 1)) + "0"]
)
def test_what_is_no_position_is_refused(wrong: str) -> None:
    with pytest.raises(OriginRefused, match="no position"):
        position_from(wrong)


def test_a_change_has_the_timeline_on_which_it_was_written() -> None:
    found = timelines_from(7, 3, HISTORY)
    assert found == Timelines(7, 3, ((1, 0x3000000), (2, 0x5000000)))
    assert [found.of_change(lsn) for lsn in (0x2FFFFFF, 0x3000000, 0x5000000)] == [1, 2, 3]
    # Whoever has all before a timeline's end has nothing of the next.
    assert [found.of_end(lsn) for lsn in (0x3000000, 0x3000001, 0x5000001)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("position", "is_there"),
    [
        (Position(7, 1, 0x3000000), True),
        (Position(7, 1, 0x3000000, 1), False),  # of a commit that would begin at that end
        (Position(7, 1, 0x3000001), False),
        (Position(7, 2, 0x4000000, 5), True),
        (Position(7, 2, 0x5000001), False),
        (Position(7, 3, 0x9000000), True),
        (Position(7, 4, 0x1000000), False),
        (Position(8, 3, 0x9000000), False),
    ],
)
def test_what_a_promoted_standby_lacked_is_none_of_its_history(
    position: Position, is_there: bool
) -> None:
    assert timelines_from(7, 3, HISTORY).has(position) == is_there


def test_an_event_id_holds_all_that_makes_it_another_change() -> None:
    at = str(Position(7, 1, 0xABC, 1))
    found = {
        event_id_of(backend, collection, key, position)
        for backend in ("a", "b")
        for collection in ("public.t", "public.u")
        for key in ("1", "2", None)
        for position in (at, str(Position(7, 1, 0xABC, 2)), str(Position(7, 2, 0xABC, 1)))
    }
    assert len(found) == 36
    assert all(one.startswith("0000000000000abc-") for one in found)
