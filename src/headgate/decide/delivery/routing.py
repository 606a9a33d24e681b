"""Which gateways get a record, and for which of its subscriptions.

The gateway where a subscriber is connected has registered its subscription: while it is there, it
gets the delivery, whatever the mode. The mode decides what else happens:

- direct: nothing.
- consistent hash: subscribers are sent to the gateway that the ring places them at (see
  gateway_ring), so where a holder is gone, its subscriber is likely there.
- broadcast: gateways get a copy of every record that a subscription wants, `max_fanout` in all (0:
  all of them), and filter it themselves.

Without a route, because the holder isn't there: to where the ring places the subscriber, if there
is a ring; else a broadcast. Without any gateway the holder is still owed the delivery.

Invariants: a holder that is there is never left out, whatever the limit. Every matched record goes
to at least one gateway, and to each one once. Routes are a value: another topology makes another
one, so no record is routed half by one and half by the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from headgate.decide.planning.gateway_ring import Places, subscriber_of
from headgate.model.lanes import Mode
from headgate.model.topology import GatewayRing

MATCHED = Mapping[str, tuple[str, ...]]
"""Per gateway that holds them, the subscriptions that want a record."""


class Addressed(NamedTuple):
    """A delivery for one gateway: the subscriptions that it is known to hold, and whether it is to
    look for others itself."""

    subscriptions: tuple[str, ...]
    broadcast: bool


class Routes:
    """`gateways` are those that are there; `ring` is None where nobody is placed by a hash."""

    __slots__ = ("_gateways", "_gone", "_live", "_max_fanout", "_mode", "_places")

    def __init__(
        self,
        gateways: Collection[str],
        mode: Mode = "direct",
        *,
        max_fanout: int = 0,
        ring: GatewayRing | None = None,
    ) -> None:
        self._gateways = tuple(sorted(gateways))
        self._live = frozenset(gateways)
        self._mode = mode
        self._max_fanout = max_fanout
        self._places = Places(ring) if ring is not None else None
        self._gone = frozenset(ring.gateways if ring is not None else ()) - self._live

    def lead_to(self, holders: Iterable[str]) -> bool:
        """Is it enough to send to `holders`, as they are? Asked for every record."""
        return self._mode != "broadcast" and self._live.issuperset(holders)

    def of(self, matched: MATCHED, turn: int) -> dict[str, Addressed]:
        """What each gateway gets of a record that `matched`. With another `turn`, a broadcast that
        doesn't go to everybody goes to others."""
        if not matched:
            return {}
        holders = {gateway: ids for gateway, ids in matched.items() if gateway in self._live}
        lost = [name for gateway, ids in matched.items() if gateway not in holders for name in ids]
        if not self._live:
            return {gateway: Addressed(ids, False) for gateway, ids in matched.items()}
        asked = self._everybody(holders, turn) if self._mode == "broadcast" else set[str]()
        for name in lost:
            placed = self._placed(name)
            asked |= self._everybody(holders, turn) if placed is None else {placed}
        return {
            gateway: Addressed(holders.get(gateway, ()), gateway in asked)
            for gateway in (*holders, *sorted(asked - holders.keys()))
        }

    def _placed(self, subscription_id: str) -> str | None:
        if self._places is None:
            return None
        return self._places.of(subscriber_of(subscription_id), avoiding=self._gone)

    def _everybody(self, holders: Collection[str], turn: int) -> set[str]:
        """Those that a broadcast goes to: the holders, and others up to the limit."""
        size = len(self._gateways)
        limit = self._max_fanout or size
        asked = set(holders)
        for step in range(size):
            if len(asked) >= limit:
                break
            asked.add(self._gateways[(turn + step) % size])
        return asked
