"""Who should own what: the plan from the owners there are to the owners there should be.

The same planner serves log partitions at ingest nodes, source partitions at routers and target
partitions at gateways. What it promises, with either strategy:

- every partition without an owner among `nodes` gets one, if any node is there that isn't draining;
- afterwards the nodes that aren't draining are even: max - min <= 1 + imbalance, or with weights
  what `bounds` makes of it; a draining node holds nothing;
- no plan with fewer moves achieves that; planning again right after it moves nothing;
- the same question has the same answer, in whatever order its parts come;
- a partition in `moving` counts where it goes, and stays out of the plan. (While many are on the
  move, they alone may be more than the bounds allow; then the rest is as even as that permits.)

Never carries anything out, and knows nothing of epochs and leases: a node whose lease still runs
belongs in `nodes`, and keeps what it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from headgate.decide.planning import balanced, ring
from headgate.decide.planning.bounds import Load, shares
from headgate.decide.planning.starting_point import Candidate, in_order, survey
from headgate.errors import InvalidRequest
from headgate.model.event import PartitionRef
from headgate.model.topology import Move

Strategy = Literal["balanced", "ring"]
"""Both move equally many; `balanced` spreads each topic, `ring` brings partitions home."""
IMBALANCE_MAX = 1_000_000
"""An imbalance is a number from 0 to this, wherever one is set or planned with; so many partitions
nobody has."""

_STRATEGIES = {"balanced": balanced.spread, "ring": ring.follow}


class Plan(msgspec.Struct, frozen=True):
    """The moves in the order of their partitions, and how many partitions each node has before and
    after them. A move's `from_id` is empty where no node of the plan has the partition."""

    moves: tuple[Move, ...] = ()
    before: dict[str, int] = {}
    after: dict[str, int] = {}


def plan(
    partitions: Collection[PartitionRef],
    owners: Mapping[PartitionRef, str],
    nodes: Sequence[Candidate],
    *,
    strategy: Strategy,
    imbalance: int,
    moving: Collection[PartitionRef] = (),
) -> Plan:
    """The fewest moves after which `partitions` are spread evenly over `nodes`.

    `owners` may name nodes that are gone and partitions that don't count; for a partition in
    `moving` it names the recipient.
    """
    check_imbalance(imbalance)
    standing = survey(partitions, owners, nodes, moving)
    recipients: Mapping[PartitionRef, str] = {}
    if standing.participants:
        loads = [Load(node.held, len(node.fixed), node.weight) for node in standing.participants]
        bounds = shares(loads, unowned=len(standing.unowned), imbalance=imbalance)
        if standing.unowned or any(share.gives for share in bounds):
            recipients = _STRATEGIES[strategy](standing, bounds)
    return _plan(frozenset(partitions), owners, nodes, recipients)


def check_imbalance(imbalance: int) -> None:
    """Raises InvalidRequest for what no plan can be made with."""
    if not 0 <= imbalance <= IMBALANCE_MAX:
        raise InvalidRequest(
            f"Set the imbalance to a number from 0 to {IMBALANCE_MAX}, not {imbalance}.",
            imbalance=imbalance,
        )


def _plan(
    partitions: frozenset[PartitionRef],
    owners: Mapping[PartitionRef, str],
    nodes: Sequence[Candidate],
    recipients: Mapping[PartitionRef, str],
) -> Plan:
    counted = Counter(owners.get(ref, "") for ref in partitions)
    before = {node_id: counted[node_id] for node_id in sorted(node.node_id for node in nodes)}
    after = dict(before)
    moves = []
    for ref in sorted(recipients, key=in_order):
        owner, to_id = owners.get(ref, ""), recipients[ref]
        from_id = owner if owner in before else ""
        moves.append(Move(ref, from_id, to_id))
        after[to_id] += 1
        if from_id:
            after[from_id] -= 1
    return Plan(tuple(moves), before, after)
