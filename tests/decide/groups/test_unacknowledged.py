"""What a consumer has in hand, against a list that remembers everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.groups.unacknowledged import InHand
from headgate.decide.log.lineage import Lineage
from headgate.errors import InvalidRequest
from headgate.model.topology import FormerVersion, Topic

GROWN = Lineage(
    Topic("flights", 4, "keyed", 2, (2, 0, 0, 0), (FormerVersion(1, (0, 0), (2, 0)),), original=2)
)
"""From 2 to 4 partitions: 2 has keys that were in 0, and 3 those of 1, which had none."""


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


class Naive:
    """The sizes of what is in hand, looked for anew."""

    def __init__(self) -> None:
        self.records: dict[int, int] = {}
        self.marks: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        return sum(self.records.values()) + sum(self.marks.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["out", "again", "ack", "ack again", "settle", "settle again"]),
            st.integers(1, 9),
            st.integers(0, 50),
        )
    )
)
def test_what_is_in_hand_weighs_what_its_documents_do(script: list[tuple[str, int, int]]) -> None:
    hand, naive, last = InHand({0: 0}, {0: 0}), Naive(), 0
    for verb, seq, size in script:
        mark = f"m{seq}"
        match verb:
            case "out":
                last += 1
                hand.hand_out(0, last, size)
                naive.records[last] = size
            case "again":
                hand.hand_out_again(0, seq, mark, size)
                naive.marks[mark] = size
            case "ack":
                hand.acknowledge({0: min(seq, last)})
                naive.records = {s: n for s, n in naive.records.items() if s > min(seq, last)}
            case "ack again":
                hand.acknowledge_again({0: [seq]})
                naive.marks.pop(mark, None)
            case "settle":
                hand.settle(0, seq)
                naive.records.pop(seq, None)
            case "settle again":
                hand.settle_again(mark)
                naive.marks.pop(mark, None)
        assert hand.size_bytes == naive.size_bytes


def test_of_a_version_nothing_is_passed_before_what_was_before_it_is_processed_and_saved() -> None:
    """Whoever goes on would get an older event of a key again, and not the newer one behind it."""
    hand = InHand({0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0})
    for partition, seq in ((0, 1), (0, 2), (2, 1)):
        hand.hand_out(partition, seq)
    through = {0: 2, 1: 0, 2: 1}
    hand.settle(0, 2)
    hand.acknowledge({2: 1})
    assert hand.unsaved(through, GROWN) == {}, "0:1 comes again, so 0:2 does, and 2:1 must"
    hand.settle(0, 1)
    assert hand.unsaved(through, GROWN) == {0: 2}
    hand.saved(0, 2)
    assert hand.unsaved(through, GROWN) == {2: 1}


def test_of_former_versions_is_asked_only_where_there_is_something_to_save() -> None:
    """It is looked at every second, in every partition of every target."""
    asked: list[int] = []

    class Asked(Lineage):
        def begins(self, partition: int) -> Iterator[tuple[int, int]]:
            asked.append(partition)
            return super().begins(partition)

    lineage = Asked(GROWN.topic)
    hand = InHand({0: 2, 1: 0, 2: 0}, {0: 2, 1: 0, 2: 0})
    assert hand.unsaved({0: 2}, lineage) == {}
    assert asked == []
    assert hand.unsaved({0: 2, 2: 4}, lineage) == {2: 4}
    assert asked == [2]


def test_what_shares_no_keys_with_it_holds_no_position() -> None:
    hand = InHand({0: 0, 1: 0, 2: 0, 3: 0}, {0: 0, 1: 0, 2: 0, 3: 0})
    for partition, seq in ((0, 1), (3, 1)):
        hand.hand_out(partition, seq)
    hand.acknowledge({3: 1})
    assert hand.unsaved({3: 1}, GROWN) == {3: 1}


def test_what_a_partition_had_before_the_version_is_saved_without_the_rest() -> None:
    """From 3 to 2 partitions, which wait for all others: 0 ends with 5, and goes on."""
    former = FormerVersion(1, (0, 0, 0), (5, 1, 1))
    shrunk = Lineage(Topic("flights", 2, "keyed", 2, (5, 1), (former,), original=3))
    hand = InHand({0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0})
    for partition, seq in ((1, 1), (0, 5), (0, 6)):
        hand.hand_out(partition, seq)
    hand.acknowledge({0: 6})
    assert hand.unsaved({0: 6}, shrunk) == {0: 5}
    hand.saved(0, 5)
    hand.acknowledge({1: 1})
    hand.saved(1, 1)
    assert hand.unsaved({0: 6}, shrunk) == {0: 6}


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
