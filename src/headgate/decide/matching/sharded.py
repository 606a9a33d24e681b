"""Immutable collections whose changed copies share what didn't change.

Invariant: nobody ever writes to a shard, a group or a block that an older copy can see. A change
costs one small shard, its group, and one pointer per group, however large the whole is. Small
matters more than it seems: what is copied gets one more reference each, and in a large index every
one of those is a cache miss.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

SHARD_SIZE = 64
"""How many entries a shard has on average when its group gets more shards."""
GROUPS = 256
GROUP_BITS = 8
FEW = 2_048
"""Up to here one group will do."""
BLOCK_SIZE = 512

Group = list[dict[K, V]]


class Sharded(Generic[K, V]):
    """A mapping: groups of shards. `get` shows how readers in a hurry find a shard themselves."""

    __slots__ = ("groups", "mask", "size")

    def __init__(self, groups: list[Group[K, V]] | None = None, size: int = 0) -> None:
        self.groups: list[Group[K, V]] = [[{}]] if groups is None else groups
        self.mask = len(self.groups) - 1
        self.size = size

    def get(self, key: K) -> V | None:
        number = hash(key)  # `place` written out, here where most lookups end up
        number = number ^ number >> 7 ^ number >> 15
        group = self.groups[number & self.mask]
        return group[number >> GROUP_BITS & len(group) - 1].get(key)

    def values(self) -> Iterator[V]:
        for group in self.groups:
            for shard in group:
                yield from shard.values()

    def items(self) -> Iterator[tuple[K, V]]:
        for group in self.groups:
            for shard in group:
                yield from shard.items()

    def changed(self, changes: Mapping[K, V | None]) -> Sharded[K, V]:
        """A map with `changes` on top; None takes a key out."""
        groups = self.groups.copy()
        if len(groups) < GROUPS and self.size + len(changes) > FEW:
            groups = _regrouped(groups, GROUPS)
        by_group: dict[int, list[tuple[int, K, V | None]]] = {}
        mask = len(groups) - 1
        for key, value in changes.items():
            number = place(key)
            by_group.setdefault(number & mask, []).append((number >> GROUP_BITS, key, value))
        size = self.size
        for number, of_group in by_group.items():
            groups[number], grown = _changed_group(groups[number], of_group)
            size += grown
        return Sharded(groups, size)


def place(key: Hashable) -> int:
    # Numbers hash to themselves, and multiples of a thousand shall not meet in one shard.
    number = hash(key)
    return number ^ number >> 7 ^ number >> 15


def _regrouped(groups: list[Group[K, V]], count: int) -> list[Group[K, V]]:
    fresh: list[Group[K, V]] = [[{}] for _ in range(count)]
    for group in groups:
        for shard in group:
            for key, value in shard.items():
                fresh[place(key) & count - 1][0][key] = value
    return fresh


def _changed_group(
    before: Group[K, V], changes: list[tuple[int, K, V | None]]
) -> tuple[Group[K, V], int]:
    """The group with the changes, and by how much it has grown."""
    group = before.copy()
    mask = len(group) - 1
    fresh: set[int] = set()
    grown = 0
    for place_in_group, key, value in changes:
        number = place_in_group & mask
        if number not in fresh:
            fresh.add(number)
            group[number] = group[number].copy()
        shard = group[number]
        grown -= key in shard
        if value is None:
            shard.pop(key, None)
        else:
            shard[key] = value
            grown += 1
    # One look at the shards that changed is enough: they grow evenly.
    if max(len(group[number]) for number in fresh) > 2 * SHARD_SIZE:
        group = _spread(group)
    return group, grown


def _spread(before: Group[K, V]) -> Group[K, V]:
    size = sum(map(len, before))
    count = len(before)
    while count * SHARD_SIZE < size:
        count *= 2
    if count == len(before):
        return before
    group: Group[K, V] = [{} for _ in range(count)]
    for shard in before:
        for key, value in shard.items():
            group[place(key) >> GROUP_BITS & count - 1][key] = value
    return group


class SortedKeys:
    """Distinct keys in order, in blocks."""

    __slots__ = ("_blocks", "_firsts")

    def __init__(self, blocks: list[list[Any]] | None = None) -> None:
        self._blocks = blocks or []
        self._firsts = [block[0] for block in self._blocks]

    def below(self, key: Any, *, inclusive: bool) -> list[Any]:
        bisect = bisect_right if inclusive else bisect_left
        last = bisect(self._firsts, key) - 1
        if last < 0:
            return []
        block = self._blocks[last]
        nearest = block[: bisect(block, key)]
        return [*chain.from_iterable(self._blocks[:last]), *nearest] if last else nearest

    def above(self, key: Any, *, inclusive: bool) -> list[Any]:
        bisect = bisect_left if inclusive else bisect_right
        first = bisect(self._firsts, key) - 1
        if first < 0:
            return [*chain.from_iterable(self._blocks)]
        block = self._blocks[first]
        nearest = block[bisect(block, key) :]
        return [*nearest, *chain.from_iterable(self._blocks[first + 1 :])]

    def changed(self, *, gone: Iterable[Any], new: Iterable[Any]) -> SortedKeys:
        """`gone` are keys it has, `new` are keys it doesn't have."""
        gone_here, new_here = self._by_block(gone), self._by_block(new)
        if not gone_here and not new_here:
            return self
        blocks = self._blocks.copy() or [[]]
        for number in sorted(gone_here.keys() | new_here.keys(), reverse=True):
            left = set(gone_here.get(number, ()))
            keys = [key for key in blocks[number] if key not in left]
            keys = sorted(keys + new_here.get(number, []))
            pieces = [keys]
            if len(keys) > BLOCK_SIZE:
                half = BLOCK_SIZE // 2
                pieces = [keys[at : at + half] for at in range(0, len(keys), half)]
            blocks[number : number + 1] = [piece for piece in pieces if piece]
        return SortedKeys(blocks)

    def _by_block(self, keys: Iterable[Any]) -> dict[int, list[Any]]:
        by_block: dict[int, list[Any]] = {}
        for key in keys:
            by_block.setdefault(max(bisect_right(self._firsts, key) - 1, 0), []).append(key)
        return by_block
