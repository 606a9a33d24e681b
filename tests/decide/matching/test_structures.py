"""The immutable map and the sorted keys under the index, against a dict and a sorted list."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.matching import sharded
from headgate.decide.matching.sharded import Sharded, SortedKeys, place

keys = st.integers(0, 60) | st.text("abc", max_size=3)
patches = st.lists(st.dictionaries(keys, st.none() | st.integers(), max_size=15), max_size=12)


@settings(max_examples=200, deadline=None)
@given(patches)
def test_a_map_is_what_a_dict_would_be_and_its_past_stays(
    changes: list[dict[int | str, int | None]],
) -> None:
    with mock.patch.multiple(sharded, SHARD_SIZE=2, GROUPS=4, FEW=5):
        past: list[tuple[Sharded[int | str, int], dict[int | str, int]]] = [(Sharded(), {})]
        for change in changes:
            before, plain = past[-1]
            after = {**plain, **change}
            expected = {key: value for key, value in after.items() if value is not None}
            past.append((before.changed(change), expected))
        for found, expected in past:
            assert found.size == len(expected)
            assert sorted(found.values()) == sorted(expected.values())
            assert all(found.get(key) == expected.get(key) for key in [*range(61), *expected])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sets(st.integers(0, 50), max_size=20), max_size=8), st.integers(-1, 51))
def test_sorted_keys_are_a_sorted_list(toggled: list[set[int]], at: int) -> None:
    with mock.patch.object(sharded, "BLOCK_SIZE", 4):
        past = [(SortedKeys(), list[int]())]
        for some in toggled:
            order, plain = past[-1]
            gone, new = some & set(plain), some - set(plain)
            past.append((order.changed(gone=gone, new=new), sorted((set(plain) | new) - gone)))
        for order, plain in past:
            assert list(order.below(at, inclusive=False)) == plain[: bisect_left(plain, at)]
            assert list(order.below(at, inclusive=True)) == plain[: bisect_right(plain, at)]
            assert list(order.above(at, inclusive=False)) == plain[bisect_right(plain, at) :]
            assert list(order.above(at, inclusive=True)) == plain[bisect_left(plain, at) :]


@pytest.mark.parametrize("step", [1, 10, 64, 100, 256, 1_000, 1_024, 65_536, 2**32 + 1], ids=str)
def test_regular_numbers_do_not_meet_in_one_shard(step: int) -> None:
    numbers = dict.fromkeys((number * step for number in range(20_000)), 1)
    made = Sharded[int, int]().changed(numbers)
    shards = [len(shard) for group in made.groups for shard in group]
    assert max(shards) <= 2_048


def test_a_change_copies_little_of_a_large_map() -> None:
    before = Sharded[int, int]().changed(dict.fromkeys(range(200_000), 1))
    after = before.changed({7: 2})
    kept = sum(one is other for one, other in zip(before.groups, after.groups, strict=True))
    assert kept == len(before.groups) - 1
    number = place(7) & before.mask
    old, new = before.groups[number], after.groups[number]
    assert sum(one is not other for one, other in zip(old, new, strict=True)) == 1
    assert max(len(shard) for shard in new) <= 4 * sharded.SHARD_SIZE
