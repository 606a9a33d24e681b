"""Who is owed what, kept apart from the code that it judges, as naively as can be.

A subscription is owed every record that it wants and that was appended after it registered, for as
long as it stays where it is. A pair of record and subscription is accounted for once it was
delivered, or lies in a letter, or an operator deleted that letter, or the subscriber was told to
resync over it. `tags` notes what happened around each record, so that it can be counted which
features have met.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from headgate.model.delivery import Delivery
from headgate.model.letters import Letter
from headgate.model.subscription import Subscription

Place = tuple[int, int]
"""Partition and seq."""
Pair = tuple[int, int, str]
"""What one subscription is owed of one record: partition, seq and its name."""


@dataclass(slots=True)
class Standing:
    """A subscription as long as it stays at one gateway; `starts` are the seqs after which it is
    owed what it wants."""

    subscription: Subscription
    kind: str | None
    """The kind of records that it wants; None: all."""
    starts: dict[int, int] = field(default_factory=dict)
    held: bool = True
    """Not yet told "subscribed": some lane may not know of it."""


@dataclass(slots=True)
class Ledger:
    standing: dict[str, Standing] = field(default_factory=dict)
    kinds: dict[Place, str] = field(default_factory=dict)
    delivered: set[Pair] = field(default_factory=set)
    deleted: set[Pair] = field(default_factory=set)
    told: set[Pair] = field(default_factory=set)
    taken_again: set[Place] = field(default_factory=set)
    """What somebody took that was marked as a redelivery."""
    tags: defaultdict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    everywhere: set[str] = field(default_factory=set)
    """What is so for every record of this run."""
    violations: list[str] = field(default_factory=list)

    def owed(self, partition: int, through_seq: int) -> Iterable[Pair]:
        """What those who are there now must have had of the partition, up to a seq."""
        for name, one in self.standing.items():
            if one.held:
                continue
            for seq in range(one.starts[partition] + 1, through_seq + 1):
                if one.kind in (None, self.kinds[partition, seq]):
                    yield partition, seq, name

    def unaccounted(
        self, letters: Iterable[Letter], partition: int, through_seq: int
    ) -> list[Pair]:
        """What was neither delivered, nor written down, nor told to be missing."""
        letters = list(letters)
        written = {
            (one.delivery.partition, one.delivery.seq, name)
            for one in letters
            for name in one.delivery.subscriptions
            if self.is_at(name, one.gateway_id)
        }
        for one in letters:
            if one.delivery.lost_from:
                written |= self.covered(one.delivery, one.gateway_id)
        fine = self.delivered | self.deleted | self.told | written
        return [pair for pair in self.owed(partition, through_seq) if pair not in fine]

    def covered(self, notice: Delivery, gateway_id: str) -> set[Pair]:
        """The pairs that a notice of a gap is about."""
        return {
            (notice.partition, seq, name)
            for name in self.standing
            if self.is_at(name, gateway_id)
            for seq in range(notice.lost_from, notice.seq + 1)
        }

    def is_at(self, name: str, gateway_id: str) -> bool:
        one = self.standing.get(name)
        return one is not None and one.subscription.gateway_id == gateway_id

    def wants(self, name: str, partition: int, seq: int) -> bool:
        one = self.standing.get(name)
        return one is not None and one.kind in (None, self.kinds[partition, seq])

    # --- which features have met -----------------------------------------------------------------

    def tag(self, what: str, *places: Place) -> None:
        for place in places:
            self.tags[place].add(what)

    def met(self) -> Counter[tuple[str, str]]:
        """How many records each two features met at."""
        found: Counter[tuple[str, str]] = Counter()
        for tags in self.tags.values():
            found.update(combinations(sorted(tags | self.everywhere), 2))
        return found
