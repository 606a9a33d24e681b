"""The ring strategy: a consistent-hash ring says which partitions move and where they go.

Every node has points on a ring, as many as its weight says; a partition's home is the node of the
first point at or after its own position, and its second choice the next node on the way. The load
is bounded from both sides by the same shares as in the balanced strategy, so the number of moves
is the same; what the ring adds is that the choice doesn't depend on history: a node that was away
gets back, first of all, what was at home there.

Never moves a partition merely because its home is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.decide.planning import hash_ring
from headgate.decide.planning.bounds import Bounds
from headgate.decide.planning.starting_point import WEIGHT_STEPS, Participant, Standing
from headgate.model.event import PartitionRef

POINTS_PER_WEIGHT = 64
MAX_POINTS = 4_096
"""Of one node, however heavy: beyond this the shares alone see to its load."""


def follow(standing: Standing, shares: Sequence[Bounds]) -> dict[PartitionRef, str]:
    """Who gets each partition that has to move."""
    participants = standing.participants
    ring = Ring(participants)
    held = [
        participant.held - share.gives
        for participant, share in zip(participants, shares, strict=True)
    ]
    open_nodes = {node for node, share in enumerate(shares) if held[node] < share.high}
    pool = [(position(ref), ref) for ref in standing.unowned]
    for node, share in enumerate(shares):
        if share.gives:
            pool += _given(ring, node, participants[node].free, share.gives, open_nodes)

    # By position and not by name, so that every topic has the same chance of its home.
    pool.sort()
    lacking = sum(max(share.low - held[node], 0) for node, share in enumerate(shares))
    ring.close(node for node in range(len(participants)) if node not in open_nodes)
    recipients = {}
    for placed, (at, ref) in enumerate(pool):
        if len(pool) - placed == lacking:  # all that is left is needed for the lower bounds
            ring.close(node for node, share in enumerate(shares) if held[node] >= share.low)
        node = ring.first_open(at)
        recipients[ref] = participants[node].node_id
        lacking -= held[node] < shares[node].low
        held[node] += 1
        if held[node] == shares[node].high:
            ring.close([node])
    return recipients


class Ring(hash_ring.Ring):
    """With as many points for each participant as its weight says."""

    def __init__(self, participants: Sequence[Participant]) -> None:
        super().__init__([_points(participant) for participant in participants])


def position(ref: PartitionRef) -> int:
    """Where a partition is on the ring, for all times."""
    return hash_ring.place_of(str(ref))


def _points(participant: Participant) -> list[int]:
    """A heavier node has the points of a lighter one of the same name and some more, so that a
    change of weight moves no more homes than it has to."""
    count = min(max(participant.weight * POINTS_PER_WEIGHT // WEIGHT_STEPS, 1), MAX_POINTS)
    return hash_ring.points_of(participant.node_id, count)


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
