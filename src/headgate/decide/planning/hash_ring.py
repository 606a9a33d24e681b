"""A consistent-hash ring: which member comes first, and which next, from any place on it.

Every member has points on the ring; a place belongs to the member of the first point at or after
it. When a member comes or goes, only places next to its own points change hands.

The hash is one that all processes and versions agree on (Python's own isn't), and must never
change: nodes that don't ask each other have to come to the same answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from struct import unpack

_POINTS_PER_DIGEST = 8


class Ring:
    """The points of all members in order; members are known by their number in `points`.

    `_next[i]` is a point at or after `i` that no open point lies before; following it until it
    points to itself finds the open one, and shortens the way for the next walk.
    """

    def __init__(self, points: Sequence[Iterable[int]]) -> None:
        found = sorted((point, node) for node, some in enumerate(points) for point in some)
        self.positions = [point for point, _ in found]
        self.nodes = [node for _, node in found]
        self._next = list(range(len(found) + 1))
        self._of_node: list[list[int]] = [[] for _ in points]
        for index, node in enumerate(self.nodes):
            self._of_node[node].append(index)

    def home(self, at: int) -> int:
        """The member that a place belongs to, open or not."""
        return self.nodes[bisect_left(self.positions, at) % len(self.nodes)]

    def walk(self, at: int) -> Iterator[int]:
        """Every member, open or not, in the order of its first point from `at` on."""
        begin, seen = bisect_left(self.positions, at), set[int]()
        for index in range(begin, begin + len(self.nodes)):
            node = self.nodes[index % len(self.nodes)]
            if node not in seen:
                seen.add(node)
                yield node

    def close(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            for index in self._of_node[node]:
                self._next[index] = index + 1
            self._of_node[node] = []

    def first_open(self, at: int) -> int:
        """The first member from `at` on that is open, in almost no time; at least one is."""
        index = self._open_from(bisect_left(self.positions, at))
        if index == len(self.nodes):
            index = self._open_from(0)
        return self.nodes[index]

    def _open_from(self, index: int) -> int:
        while self._next[index] != index:
            self._next[index] = self._next[self._next[index]]
            index = self._next[index]
        return index


def place_of(text: str) -> int:
    """Where something is on the ring, for all times."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def points_of(name: str, count: int) -> list[int]:
    """The first `count` points of a member: who has more has those of fewer, and some more."""
    points: list[int] = []
    for number in range(-(-count // _POINTS_PER_DIGEST)):
        points += unpack(f"<{_POINTS_PER_DIGEST}Q", blake2b(f"{name}#{number}".encode()).digest())
    return points[:count]
