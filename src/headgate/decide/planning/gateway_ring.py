"""Which gateway a subscriber belongs to, by the hash of its id, with bounded load.

The gateways stand on a ring. A subscriber belongs to the first gateway from its own place on that
isn't at its bound; when that one can't be reached, to the next. The coordinator says who stands on
the ring and who is at the bound (`GatewayRing`), so every node that asks gets the same answer.

Invariants: the answer depends on nothing but the ring, the id and who is avoided. Subscribers that
follow it one by one leave no gateway with more than `BOUND` times the average, from `FEW` on. A
gateway that comes or goes changes the answer only for those that it gets or had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headgate.decide.planning.hash_ring import Ring, place_of, points_of
from headgate.model.topology import GatewayRing

POINTS = 64
BOUND = (5, 4)
"""What a gateway may have, as a multiple of the average: 1.25."""
ROOM_AGAIN = (19, 20)
"""One that was at its bound takes subscribers again below this part of it, so that the gateways at
the bound don't change with every subscriber that comes or goes."""
FEW = 8
"""So many subscriptions a gateway may have whatever the average is."""


class Places:
    """Places subscribers on one ring."""

    def __init__(self, ring: GatewayRing) -> None:
        self._gateways = ring.gateways
        self._full = frozenset(ring.full)
        self._ring = Ring([points_of(name, POINTS) for name in ring.gateways])

    def of(self, subscriber_id: str, *, avoiding: Collection[str] = ()) -> str | None:
        """The gateway of a subscriber; None when all there are are to be avoided.

        One at its bound is better than none.
        """
        second = None
        for number in self._ring.walk(place_of(subscriber_id)):
            gateway_id = self._gateways[number]
            if gateway_id in avoiding:
                continue
            if gateway_id not in self._full:
                return gateway_id
            second = second or gateway_id
        return second


def bound(total: int, gateways: int) -> int:
    """How many of `total` subscriptions one of so many gateways may have."""
    times, by = BOUND
    return max(FEW, -(-times * total // (by * gateways)))


def ring_of(counts: Mapping[str, int], before: GatewayRing | None) -> GatewayRing:
    """The ring of the gateways that have so many subscriptions each; `before` is the one that is
    out."""
    if not counts:
        return GatewayRing()
    most = bound(sum(counts.values()) + 1, len(counts))
    was_full = frozenset(before.full) if before is not None else frozenset[str]()
    part, of = ROOM_AGAIN
    full = (
        name
        for name, count in counts.items()
        if count >= most or (name in was_full and of * count >= part * most)
    )
    return GatewayRing(tuple(sorted(counts)), tuple(sorted(full)))


def subscription_id(subscriber_id: str, unique: str) -> str:
    """The id of one subscription of a subscriber, told apart from its others by `unique`."""
    return f"{subscriber_id}.{unique}"


def subscriber_of(subscription_id: str) -> str:
    """The id of the subscriber that has the subscription; one that belongs to none is its own."""
    return subscription_id.rpartition(".")[0] or subscription_id
