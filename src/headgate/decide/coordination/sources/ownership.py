"""Who owns each partition, under which epoch.

The same table serves log partitions at ingest nodes, source partitions at routers and the targets
of consumer groups at their consumers. An epoch is never given out twice: it survives the owner, the
topic and the coordinator. Those of partitions that are forgotten are all at most `above`, and every
partition that isn't known begins above that.

Invariant: the epoch of a partition never falls, and another owner has a higher one. Every change
goes through `_put` or `forget`, which see to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model.event import PartitionRef
from headgate.model.topology import Owner

NOBODY = ""


@dataclass(slots=True)
class Ownership:
    owners: dict[PartitionRef, Owner] = field(default_factory=dict)
    above: int = 0

    @classmethod
    def of(cls, owners: Iterable[Owner], *, above: int = 0) -> Ownership:
        return cls({owner.ref: owner for owner in owners}, above)

    def of_node(self, node_id: str) -> list[Owner]:
        return sorted(
            (o for o in self.owners.values() if o.node_id == node_id), key=lambda o: o.ref
        )

    def owned(self) -> tuple[Owner, ...]:
        """Every partition that has an owner, for the topology."""
        return tuple(
            sorted((o for o in self.owners.values() if o.node_id != NOBODY), key=lambda o: o.ref)
        )

    def all(self) -> tuple[Owner, ...]:
        """Also those without an owner, for the store: their epochs must not come back."""
        return tuple(sorted(self.owners.values(), key=lambda o: o.ref))

    def take(self, ref: PartitionRef, node_id: str) -> Owner:
        """Give `ref` to `node_id` under a new epoch."""
        epoch = self.owners[ref].epoch if ref in self.owners else self.above
        return self._put(Owner(ref, node_id, epoch + 1))

    def forget(self, refs: Iterable[PartitionRef]) -> None:
        """None of these has an owner, or ever will have one under an epoch that it has had."""
        for ref in refs:
            if (known := self.owners.pop(ref, None)) is not None:
                assert known.node_id == NOBODY, f"{known} is forgotten"
                self.above = max(self.above, known.epoch)

    def release(self, ref: PartitionRef) -> None:
        if ref in self.owners:
            self._put(Owner(ref, NOBODY, self.owners[ref].epoch))

    def is_credible(self, owner: Owner) -> bool:
        """Whether `owner` may have its partition, for all that is known here."""
        known = self.owners.get(owner.ref)
        return known is None or known.epoch < owner.epoch or known == owner

    def claim(self, owner: Owner) -> bool:
        """Believe that `owner` has its partition, unless a higher epoch is known; True if so."""
        if not self.is_credible(owner):
            return False
        self._put(owner)
        return True

    def raise_above(self, ref: PartitionRef, epoch: int) -> Owner:
        """Give `ref` to its owner anew, above an epoch that a store has met."""
        known = self.owners.get(ref, Owner(ref, NOBODY, self.above))
        return self._put(Owner(ref, known.node_id, max(known.epoch, epoch) + 1))

    def _put(self, owner: Owner) -> Owner:
        known = self.owners.get(owner.ref)
        is_released = owner.node_id == NOBODY and known is not None and owner.epoch == known.epoch
        assert is_released or self.is_credible(owner), f"{owner} can't follow {known}"
        self.owners[owner.ref] = owner
        return owner

    def is_owned(self, ref: PartitionRef) -> bool:
        known = self.owners.get(ref)
        return known is not None and known.node_id != NOBODY
