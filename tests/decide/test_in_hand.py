"""What a consumer has in hand, against a list that remembers everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.in_hand import InHand
from headgate.errors import InvalidRequest


def test_no_acknowledgement_means_what_is_kept_back() -> None:
    hand = InHand({0: 0}, {0: 0})
    for seq in (1, 2, 3):
        hand.hand_out(0, seq)
    hand.keep_back((0, 2))
    hand.acknowledge({0: 3})
    assert (len(hand), hand.positions({0: 9})) == (1, {0: 1})
    hand.settle(0, 2)
    assert (len(hand), hand.positions({0: 9})) == (0, {0: 9})


def test_a_position_passes_what_is_settled_though_something_later_is_in_hand() -> None:
    hand = InHand({0: 0}, {0: 0})
    for seq in (1, 2, 3):
        hand.hand_out(0, seq)
    hand.settle(0, 2)
    assert hand.positions({0: 3}) == {0: 0}
    hand.settle(0, 1)
    assert hand.positions({0: 3}) == {0: 1}
    hand.acknowledge({0: 3})
    assert hand.positions({0: 3}) == {0: 3}


def test_what_is_handed_over_after_all_is_acknowledged_like_everything_else() -> None:
    hand = InHand({0: 0}, {0: 0})
    hand.hand_out(0, 1)
    hand.keep_back((0, 1))
    hand.hand_over((0, 1))
    hand.acknowledge({0: 1})
    assert (len(hand), hand.positions({})) == (0, {0: 1})


steps = st.lists(
    st.tuples(st.sampled_from(["out", "ack", "read"]), st.integers(0, 1), st.integers(1, 4))
)


@given(steps)
def test_positions_are_what_is_processed_without_a_gap(script: list[tuple[str, int, int]]) -> None:
    hand = InHand({0: 3, 1: 0}, {0: 0, 1: 0})
    handed: dict[int, list[int]] = {0: [], 1: []}
    done = {0: 3, 1: 0}
    through = {0: 3, 1: 0}
    for verb, partition, step in script:
        if verb == "read":
            through[partition] += step
        elif verb == "out":
            through[partition] += step
            handed[partition].append(through[partition])
            hand.hand_out(partition, through[partition])
        elif handed[partition]:
            seq = handed[partition][min(step, len(handed[partition])) - 1]
            done[partition] = max(done[partition], seq)
            hand.acknowledge({partition: seq})
        waiting = {p: [s for s in seqs if s > done[p]] for p, seqs in handed.items()}
        assert len(hand) == sum(map(len, waiting.values()))
        assert hand.positions(through) == {
            p: done[p] if waiting[p] else max(done[p], through[p]) for p in done
        }


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        pytest.param({0: 6}, "sent up to seq 5, so 6 can't", id="never sent"),
        pytest.param({7: 1}, "no partition 7", id="no such partition"),
        pytest.param({0: 5, 7: 1}, "no partition 7", id="one of two"),
    ],
)
def test_what_was_never_handed_out_cannot_be_acknowledged(
    positions: dict[int, int], words: str
) -> None:
    hand = InHand({0: 3}, {0: 3})
    hand.hand_out(0, 5)
    with pytest.raises(InvalidRequest, match=words):
        hand.acknowledge(positions)
    assert len(hand) == 1
    assert hand.positions({0: 5}) == {0: 3}


def test_only_what_the_store_lacks_is_unsaved() -> None:
    hand = InHand({0: 3, 1: 8}, {0: 0, 1: 8})
    assert hand.unsaved({}) == {0: 3}
    hand.saved(0, 3)
    assert hand.unsaved({}) == {}
    hand.hand_out(0, 4)
    assert hand.unsaved({0: 4}) == {}
    hand.acknowledge({0: 4})
    assert hand.unsaved({0: 4}) == {0: 4}


def test_an_item_out_of_its_order_waits_for_nobody() -> None:
    hand = InHand({0: 3}, {})
    hand.hand_out(0, 2)
    assert len(hand) == 0
