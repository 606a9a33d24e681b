"""What a lane holds at the moment: its partitions, the gateways it knows, the subscriptions.

A passive value, in which the code that delivers, reads or sends letters looks things up each time,
because they may be others the next moment. Each part of it has one owner, which changes it between
two awaits: the lane's grip the partitions (positions/grip.py), `Surroundings` the gateways and the
topology, `Adopted` the subscriptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from headgate.decide.delivery.parts import narrowed, ref_of
from headgate.decide.log.lineage import lineage_of
from headgate.lane.positions.partition import SourcePartition
from headgate.lane.subscriptions.adopted import Adopted
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.topology import Owner, Topic

FIRST_VERSION = 1
NOTHING: Mapping[PartitionRef, int] = MappingProxyType({})


@dataclass(slots=True)
class Around:
    """What the last topology says: `urls` is where each gateway takes deliveries, `incarnations`
    the process that does, `topics` how each is partitioned."""

    urls: Mapping[str, str] = field(default_factory=dict)
    incarnations: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holding:
    """`gone` is what was planned for the lane and others have by now."""

    adopted: Adopted
    around: Around
    partitions: Mapping[PartitionRef, SourcePartition]
    gone: AbstractSet[PartitionRef]

    def is_at(self, subscription_id: str, gateway_id: str) -> bool:
        """Is the subscription alive, and at that gateway?"""
        subscription = self.adopted.index.subscription(subscription_id)
        return subscription is not None and subscription.gateway_id == gateway_id

    def wanted(self, delivery: Delivery, gateway_id: str) -> Delivery | None:
        """The delivery for those of its subscriptions that are there; None when none is."""
        if ref_of(delivery) not in self.partitions:
            return None
        is_there = gateway_id in self.around.urls
        if delivery.lost_from:
            # Which subscriptions it concerns is for the gateway to say. The subscribers of one that
            # is gone read the log, and find a gap by themselves.
            return delivery if is_there else None
        here = [name for name in delivery.subscriptions if self.is_at(name, gateway_id)]
        if len(here) < len(delivery.subscriptions):
            # Also of a broadcast: whom the gateway finds there by itself looks into the log for
            # what is before, which may have been released.
            delivery = narrowed(delivery, frozenset(here))
        return delivery if here or (delivery.broadcast and is_there) else None

    def low(self, subscriptions: Sequence[str]) -> list[str]:
        """Those of low priority."""
        found = [(name, self.adopted.index.subscription(name)) for name in subscriptions]
        return [name for name, one in found if one is not None and one.priority == "low"]

    def knows_of(self, ref: PartitionRef) -> bool:
        """Is it clear whether this lane or another one reads `ref`?"""
        return ref in self.partitions or ref in self.gone

    def owned(self) -> tuple[Owner, ...]:
        return tuple(partition.owner for partition in self.partitions.values())

    def fences(self) -> dict[PartitionRef, Fence]:
        """The partitions that the lane has, and under which fence."""
        return {ref: partition.fence for ref, partition in self.partitions.items()}

    def fence(self, ref: PartitionRef) -> Fence | None:
        """Under which fence the lane has `ref`; None once it is another lane's."""
        partition = self.partitions.get(ref)
        return None if partition is None else partition.fence

    def read_seq(self, ref: PartitionRef) -> int:
        """How far the lane has read `ref`, and put what it found; 0 once it is another lane's."""
        partition = self.partitions.get(ref)
        return 0 if partition is None else partition.read.seq

    def read_so_far(self) -> dict[PartitionRef, int]:
        return {ref: partition.read.seq for ref, partition in self.partitions.items()}

    def readable_version(self, topic: str) -> int:
        """The newest partitioning version of `topic` that every gateway knows."""
        known = self.around.topics.get(topic)
        if known is None:
            return FIRST_VERSION
        is_news = known.repartition is not None and known.repartition.phase == "fenced"
        return known.version - 1 if is_news else known.version

    def before(self, ref: PartitionRef, version: int) -> Mapping[PartitionRef, int]:
        """Up to where others are to be settled before records of `version` in `ref`."""
        topic = self.around.topics.get(ref.topic)
        if topic is None or not topic.former:
            return NOTHING
        found = lineage_of(topic).before(version, ref.partition)
        return {PartitionRef(ref.topic, number): last for number, last in found.items()}

    def version(self, ref: PartitionRef) -> int:
        """The partitioning version that is read of `ref`."""
        partition = self.partitions.get(ref)
        return 0 if partition is None else partition.order.version

    def version_of(self, ref: PartitionRef, seq: int) -> int:
        """The partitioning version of the record of `ref` with that seq."""
        topic = self.around.topics.get(ref.topic)
        return FIRST_VERSION if topic is None else lineage_of(topic).version_of(ref.partition, seq)

    def unsettled(self) -> int:
        return sum(partition.unsettled for partition in self.partitions.values())
