"""A log that ends before what its readers have settled, or is another one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.decide.delivery.lost_logs import MARGIN, another, lost, next_head
from headgate.errors import HistoryLost
from headgate.lane.delivery.pipelines import REMEMBERED
from headgate.model.event import PartitionRef, Record

REF = PartitionRef("flights", 3)
SEQS = st.integers(0, 2**62)
KNOWN = Record("flights", 3, 5, 1, "e5", "DLH4AB", "", "insert", b"{}", None, None, 1_005)


@given(SEQS, SEQS)
def test_history_is_lost_where_the_log_ends_before_what_is_settled(head: int, settled: int) -> None:
    assert (lost(REF, head=head, settled=settled) is not None) == (head < settled)


@given(SEQS, SEQS)
def test_it_goes_on_where_nothing_is_lost_any_more(head: int, settled: int) -> None:
    assert lost(REF, head=max(head, next_head(settled)), settled=settled) is None


@given(SEQS, SEQS, SEQS)
def test_what_was_acknowledged_counts_like_what_is_settled(
    head: int, settled: int, acknowledged: int
) -> None:
    said = lost(REF, head=head, settled=settled, acknowledged=acknowledged)
    known = max(settled, acknowledged)
    assert (said is not None) == (head < known)
    if said is not None:
        assert said.details["settled"] == known
        assert f"{'acknowledged' if acknowledged > settled else 'delivered'} up to" in str(said)


def test_it_says_what_happened_and_what_to_do_also_in_another_process() -> None:
    said = pickle.loads(pickle.dumps(lost(REF, head=2, settled=10)))
    assert isinstance(said, HistoryLost)
    assert said.details == {"topic": "flights", "partition": 3, "head": 2, "settled": 10}
    assert "the log of flights:3 ends at 2" in str(said)
    assert "headgate partition reset flights:3 --to earliest" in str(said)


def test_more_is_left_out_than_a_lane_has_in_hand() -> None:
    assert MARGIN >= 2 * REMEMBERED


@pytest.mark.parametrize(
    "found", [None, KNOWN, replace(KNOWN, seq=6, event_id="e6")], ids=["none", "same", "behind"]
)
def test_a_record_that_is_the_same_or_gone_says_nothing(found: Record | None) -> None:
    assert another(REF, known=KNOWN, found=found) is None


@pytest.mark.parametrize(
    "change",
    [{"event_id": "f5"}, {"time_ms": 2_000}, {"document": b'{"new":1}'}, {"key": "BAW12"}],
    ids=lambda change: next(iter(change)),
)
def test_another_record_in_its_place_says_that_history_is_lost(change: dict[str, Any]) -> None:
    said = another(REF, known=KNOWN, found=replace(KNOWN, **change))
    assert isinstance(said, HistoryLost)
    assert said.details == {"topic": "flights", "partition": 3, "settled": 5}
    assert "record 5 of flights:3 is not the one that was delivered" in str(said)
    assert "headgate partition reset flights:3 --to earliest" in str(said)
