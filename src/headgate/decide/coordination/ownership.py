"""Who owns each partition, under which epoch.

The same table serves log partitions at ingest nodes and source partitions at routers. An epoch is
never given out twice: it survives the owner, the topic and the coordinator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model.event import PartitionRef
from headgate.model.topology import Owner

NOBODY = ""


@dataclass(slots=True)
class Ownership:
    owners: dict[PartitionRef, Owner] = field(default_factory=dict)

    @classmethod
    def of(cls, owners: Iterable[Owner]) -> Ownership:
        return cls({owner.ref: owner for owner in owners})

    def of_node(self, node_id: str) -> list[Owner]:
        return sorted(
            (o for o in self.owners.values() if o.node_id == node_id), key=lambda o: o.ref
        )

    def owned(self) -> tuple[Owner, ...]:
        """Every partition that somebody owns, for the topology."""
        return tuple(
            sorted((o for o in self.owners.values() if o.node_id != NOBODY), key=lambda o: o.ref)
        )

    def all(self) -> tuple[Owner, ...]:
        """Also those without an owner, for the store: their epochs must not come back."""
        return tuple(sorted(self.owners.values(), key=lambda o: o.ref))

    def take(self, ref: PartitionRef, node_id: str) -> Owner:
        """Give `ref` to `node_id` under a new epoch."""
        epoch = self.owners[ref].epoch + 1 if ref in self.owners else 1
        self.owners[ref] = Owner(ref, node_id, epoch)
        return self.owners[ref]

    def release(self, ref: PartitionRef) -> None:
        if ref in self.owners:
            self.owners[ref] = Owner(ref, NOBODY, self.owners[ref].epoch)

    def spread(self, refs: Iterable[PartitionRef], node_ids: Iterable[str]) -> list[Owner]:
        """Give each ownerless partition of `refs` to the node that owns the fewest."""
        load = Counter(dict.fromkeys(node_ids, 0))
        if not load:
            return []
        for owner in self.owners.values():
            if owner.node_id in load:
                load[owner.node_id] += 1
        taken = []
        for ref in sorted(refs):
            if (known := self.owners.get(ref)) is not None and known.node_id != NOBODY:
                continue
            node_id = min(load, key=lambda n: (load[n], n))
            load[node_id] += 1
            taken.append(self.take(ref, node_id))
        return taken
