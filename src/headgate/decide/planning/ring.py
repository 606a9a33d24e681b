"""The ring strategy: a consistent-hash ring says which partitions move and where they go.

Every node has points on a ring, as many as its weight says; a partition's home is the node of the
first point at or after its own position, and its second choice the next node on the way. The load
is bounded from both sides by the same shares as in the balanced strategy, so the number of moves
is the same; what the ring adds is that the choice doesn't depend on history: a node that was away
gets back, first of all, what was at home there.

Never moves a partition merely because its home is elsewhere. The hash is one that all processes
and versions agree on (Python's own isn't).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from struct import unpack

from headgate.decide.planning.bounds import Share
from headgate.decide.planning.standing import WEIGHT_STEPS, Holder, Standing
from headgate.model.event import PartitionRef

POINTS_PER_WEIGHT = 64
MAX_POINTS = 4_096
"""Of one node, however heavy: beyond this the shares alone see to its load."""
_POINTS_PER_DIGEST = 8


def follow(standing: Standing, shares: Sequence[Share]) -> dict[PartitionRef, str]:
    """Who gets each partition that has to move."""
    holders = standing.holders
    ring = Ring(holders)
    held = [holder.held - share.gives for holder, share in zip(holders, shares, strict=True)]
    open_nodes = {node for node, share in enumerate(shares) if held[node] < share.high}
    pool = [(position(ref), ref) for ref in standing.homeless]
    for node, share in enumerate(shares):
        if share.gives:
            pool += _given(ring, node, holders[node].free, share.gives, open_nodes)

    # By position and not by name, so that every topic has the same chance of its home.
    pool.sort()
    lacking = sum(max(share.low - held[node], 0) for node, share in enumerate(shares))
    ring.close(node for node in range(len(holders)) if node not in open_nodes)
    recipients = {}
    for placed, (at, ref) in enumerate(pool):
        if len(pool) - placed == lacking:  # all that is left is needed for the lower bounds
            ring.close(node for node, share in enumerate(shares) if held[node] >= share.low)
        node = ring.first_open(at)
        recipients[ref] = holders[node].node_id
        lacking -= held[node] < shares[node].low
        held[node] += 1
        if held[node] == shares[node].high:
            ring.close([node])
    return recipients


class Ring:
    """The points of all nodes in order; walks skip nodes that are closed, in almost no time.

    `_next[i]` is a point at or after `i` that no open point lies before; following it until it
    points to itself finds the open one, and shortens the way for the next walk.
    """

    def __init__(self, holders: Sequence[Holder]) -> None:
        points = sorted(
            (point, node) for node, holder in enumerate(holders) for point in _points(holder)
        )
        self.positions = [point for point, _ in points]
        self.nodes = [node for _, node in points]
        self._next = list(range(len(points) + 1))
        self._of_node: list[list[int]] = [[] for _ in holders]
        for index, node in enumerate(self.nodes):
            self._of_node[node].append(index)

    def home(self, at: int) -> int:
        """The node that a position belongs to, open or not."""
        return self.nodes[bisect_left(self.positions, at) % len(self.nodes)]

    def close(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            for index in self._of_node[node]:
                self._next[index] = index + 1
            self._of_node[node] = []

    def first_open(self, at: int) -> int:
        """The first node from `at` on that is open; at least one is."""
        index = self._open_from(bisect_left(self.positions, at))
        if index == len(self.nodes):
            index = self._open_from(0)
        return self.nodes[index]

    def _open_from(self, index: int) -> int:
        while self._next[index] != index:
            self._next[index] = self._next[self._next[index]]
            index = self._next[index]
        return index


def position(ref: PartitionRef) -> int:
    """Where a partition is on the ring, for all times."""
    return int.from_bytes(blake2b(str(ref).encode(), digest_size=8).digest(), "little")


def _points(holder: Holder) -> list[int]:
    """A heavier node has the points of a lighter one of the same name and some more, so that a
    change of weight moves no more homes than it has to."""
    count = min(max(holder.weight * POINTS_PER_WEIGHT // WEIGHT_STEPS, 1), MAX_POINTS)
    points: list[int] = []
    for number in range(-(-count // _POINTS_PER_DIGEST)):
        points += unpack(
            f"<{_POINTS_PER_DIGEST}Q", blake2b(f"{holder.node_id}#{number}".encode()).digest()
        )
    return points[:count]


def _given(
    ring: Ring, node: int, free: Sequence[PartitionRef], count: int, open_nodes: set[int]
) -> list[tuple[int, PartitionRef]]:
    """What `node` parts with: guests whose home has room, then other guests, then its own."""
    by_attachment = []
    for ref in free:
        at = position(ref)
        home = ring.home(at)
        attachment = 2 if home == node else 1 if home not in open_nodes else 0
        by_attachment.append((attachment, at, ref))
    by_attachment.sort()
    return [(at, ref) for _, at, ref in by_attachment[:count]]
