"""Placement: the hash that is part of the stored format, and the opportunistic choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.produce.placement import fnv1a_64, partition_of, place, split_keyed
from headgate.model.event import Event

# --- keyed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", 0xCBF29CE484222325, id="empty"),
        pytest.param(b"a", 0xAF63DC4C8601EC8C, id="one-byte"),
        pytest.param(b"foobar", 0x85944171F73967E8, id="foobar"),
        pytest.param(b"chongo was here!\n", 0x46810940EFF5F915, id="sentence"),
        pytest.param(b"hello", 0xA430D84680AABD0B, id="hello"),
    ],
)
def test_the_hash_is_fnv1a_64(data: bytes, expected: int) -> None:
    assert fnv1a_64(data) == expected


@pytest.mark.parametrize(
    ("collection", "key", "hashed"),
    [
        pytest.param("", "3c6444", b"/3c6444", id="no-collection"),
        pytest.param("flights", "3c6444", b"flights/3c6444", id="collection"),
        pytest.param("", "", b"/", id="empty-key"),
        pytest.param("Flüge", "Zürich✈", "Flüge/Zürich✈".encode(), id="utf-8"),
    ],
)
def test_the_collection_a_slash_and_the_key_are_hashed(
    collection: str, key: str, hashed: bytes
) -> None:
    assert partition_of(key, collection=collection, count=997) == fnv1a_64(hashed) % 997


def test_the_only_partition_takes_every_key_without_hashing() -> None:
    unencodable = "\ud800"
    assert partition_of(unencodable, collection="", count=1) == 0


keys = st.one_of(st.none(), st.text(max_size=8))


@st.composite
def requests(draw: st.DrawFn) -> list[Event]:
    drawn = draw(st.lists(st.tuples(keys, st.sampled_from(["", "flights"])), max_size=30))
    return [
        Event(event_id=f"id-{index}", document=b"{}", key=key, collection=collection)
        for index, (key, collection) in enumerate(drawn)
    ]


@given(requests(), st.integers(1, 17))
def test_splitting_loses_nothing_and_keeps_the_order_of_the_request(
    events: list[Event], count: int
) -> None:
    parts = split_keyed(events, count)
    assert sorted(index for indexes in parts.values() for index in indexes) == list(
        range(len(events))
    )
    for partition, indexes in parts.items():
        assert indexes == sorted(indexes)
        assert 0 <= partition < count
        for index in indexes:
            event = events[index]
            key = event.event_id if event.key is None else event.key
            assert partition == partition_of(key, collection=event.collection, count=count)


def test_events_without_a_key_spread_by_their_ids() -> None:
    events = [Event(event_id=f"id-{n}", document=b"{}") for n in range(200)]
    assert set(split_keyed(events, 4)) == {0, 1, 2, 3}


def test_the_same_key_in_two_collections_may_part() -> None:
    placed = {partition_of("k", collection=f"c{n}", count=8) for n in range(100)}
    assert len(placed) == 8


# --- opportunistic -------------------------------------------------------------------------------


def totals(waiting: dict[int, int], sizes: list[int], chosen: list[int]) -> list[int]:
    counts = dict(waiting)
    for size, partition in zip(sizes, chosen, strict=True):
        counts[partition] += size
    return [counts[partition] for partition in sorted(counts)]


@pytest.mark.parametrize(
    ("waiting", "sizes", "chosen", "after"),
    [
        pytest.param([0, 0, 0, 0], [50, 30, 100], [0, 1, 2], [50, 30, 100, 0], id="first-round"),
        pytest.param(
            [50, 30, 100, 0], [20, 100, 100], [3, 3, 1], [50, 130, 100, 120], id="second-round"
        ),
        pytest.param([50, 130, 100, 120], [1], [0], [51, 130, 100, 120], id="next-request"),
        pytest.param([7, 7, 7], [1, 1, 1], [0, 1, 2], [8, 8, 8], id="ties-to-the-lowest"),
        pytest.param([3], [5, 5], [0, 0], [13], id="no-choice"),
    ],
)
def test_a_request_goes_whole_to_the_partition_with_the_fewest_waiting(
    waiting: list[int], sizes: list[int], chosen: list[int], after: list[int]
) -> None:
    before = dict(enumerate(waiting))
    assert place(sizes, before) == chosen
    assert totals(before, sizes, chosen) == after


def test_only_the_partitions_that_are_offered_are_chosen() -> None:
    assert place([10, 10], {2: 5, 5: 0}) == [5, 2]


@given(
    st.lists(st.integers(0, 50), max_size=20),
    st.dictionaries(st.integers(0, 9), st.integers(0, 100), min_size=1),
)
def test_placement_is_what_counting_by_hand_gives(
    sizes: list[int], waiting: dict[int, int]
) -> None:
    before = dict(waiting)
    by_hand = dict(waiting)
    expected = []
    for size in sizes:
        fewest = min(by_hand.values())
        lowest = min(number for number, count in by_hand.items() if count == fewest)
        by_hand[lowest] += size
        expected.append(lowest)
    assert place(sizes, waiting) == expected
    assert waiting == before
