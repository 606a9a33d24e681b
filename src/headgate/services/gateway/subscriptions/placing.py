"""Whether a subscriber that comes here belongs here, where subscribers are placed by a hash.

A subscriber names itself by an id that it keeps; the ring of the topology says which gateway that
id belongs to. Somebody else's id leads to the same gateway and to nothing else: it is no right to
anything, every connection has subscriptions of its own.

Invariants: nobody is sent to a gateway that it says it couldn't reach, nor to one that isn't known;
without a ring, and without anybody better, a subscriber stays. So does one that can't be sent: a
browser forgets, on its way from one address to another, which page it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from headgate import errors
from headgate.decide.planning.gateway_ring import Places
from headgate.model.topology import GatewayRing, Node, Topology
from headgate.ports.machine import Machine

MAX_UNREACHABLE = 16
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A subscriber at the door: what it calls itself, and the gateways it couldn't reach."""

    id: str = ""
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where a subscriber belongs."""

    subscriber_id: str
    gateway: Node

    def http_url(self, query: Mapping[str, str]) -> str:
        """Where to ask the same question, under the same id."""
        parameters = {**query, "id": self.subscriber_id}
        return f"{self.gateway.public_url}/v1/subscribe?{urlencode(parameters)}"


def newcomer_of(query: Mapping[str, str]) -> Newcomer:
    """Raises InvalidRequest for an id that can't be one."""
    own_id = query.get("id", "")
    if own_id and not _ID.fullmatch(own_id):
        raise errors.InvalidRequest(
            "the id of a subscriber has 1 to 64 letters, digits, - and _", parameter="id"
        )
    unreachable = tuple(name for name in query.get("unreachable", "").split(",") if name)
    if len(unreachable) > MAX_UNREACHABLE:
        raise errors.InvalidRequest(
            f"unreachable names {MAX_UNREACHABLE} gateways at most", parameter="unreachable"
        )
    return Newcomer(own_id, unreachable)


class Placing:
    def __init__(self, node_id: str, topology: Callable[[], Topology], machine: Machine) -> None:
        self._node_id = node_id
        self._topology = topology
        self._machine = machine
        self._known: tuple[GatewayRing, Places] | None = None

    def admit(
        self, newcomer: Newcomer, *, over_http: bool = False, stays: bool = False
    ) -> str | Redirect:
        """The id under which a subscriber stays (empty: nobody is placed), or where it belongs."""
        topology = self._topology()
        if topology.ring is None:
            return ""
        subscriber_id = newcomer.id or self._machine.token(12)
        placed = self._places(topology.ring).of(subscriber_id, avoiding=newcomer.unreachable)
        node = topology.node(placed) if placed is not None else None
        if stays or node is None or node.id == self._node_id:
            return subscriber_id
        there = node.public_url if over_http else node.ws_url
        return Redirect(subscriber_id, node) if there else subscriber_id

    def _places(self, ring: GatewayRing) -> Places:
        if self._known is None or self._known[0] is not ring:
            self._known = (ring, Places(ring))
        return self._known[1]
