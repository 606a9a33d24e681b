"""What a gateway remembers for people who ask why a record (didn't) arrive.

What lanes delivered, in one append per batch; what was read from the log for subscribers, in one
per read; what they don't get, and were told so or have had; what groups gave up; and how far those
were that have left. How far the others are, they know themselves (telling.py).
Invariant: nothing is ever decided by it, and documents aren't kept.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headgate.decide.explaining.ring import Ring
from headgate.decide.feed.queue import Resync
from headgate.model.delivery import Delivery, Outline, Verdict
from headgate.model.event import PartitionRef
from headgate.model.evidence import ATTEMPTS_TOLD, ENDED_TOLD, Attempt, Ended, LeftOut, Outcome
from headgate.ports.machine import Machine

_Stretch = tuple[str, int, Sequence[int], Sequence[tuple[str, ...]], Sequence[Outcome]]
"""Topic and partition of records, their seqs, whom each was for, and what was answered to each (or
once for all of them)."""
_Read = tuple[str, str, int, int, int]
"""For which subscription which partition of a topic was read, behind which seq and up to which."""

_ACCEPTED: tuple[Verdict, ...] = ("accepted",)


@dataclass(frozen=True, slots=True)
class _Former:
    """A subscription that has ended: where it began and how far it was, by partition."""

    id: str
    topic: str
    starts: Mapping[int, int]
    positions: Mapping[int, int]
    reason: str


class GatewayEvidence:
    """`size` counts records with the subscriptions each was for, and likewise the partitions of
    those that have ended; 0 keeps nothing."""

    def __init__(self, node_id: str, *, size: int, age_s: float, machine: Machine) -> None:
        self._node_id = node_id
        self._now_ms = now_ms = machine.wall_ms
        age_ms, began_ms = round(age_s * 1_000), now_ms()
        self._taken: Ring[Sequence[_Stretch]] = Ring(
            capacity=size, age_ms=age_ms, began_ms=began_ms
        )
        self._left_out: Ring[LeftOut] = Ring(capacity=size, age_ms=age_ms, began_ms=began_ms)
        self._former: Ring[_Former] = Ring(capacity=size, age_ms=age_ms, began_ms=began_ms)
        self._reads: Ring[_Read] = Ring(capacity=size, age_ms=age_ms, began_ms=began_ms)
        self._keeps = self._taken.keeps

    # --- what happens ----------------------------------------------------------------------------

    def accepted(self, outline: Outline) -> None:
        """All of a batch of ordinary records."""
        if self._keeps:
            topic, verdicts = outline.topic, _ACCEPTED
            stretches: list[_Stretch] = []
            weight = 0
            for run in outline.runs:
                stretches.append((topic, run.partition, run.seqs, run.subscriptions, verdicts))
                weight += len(run.seqs) + sum(map(len, run.subscriptions))
            self._taken.add(stretches, weight, self._now_ms())

    def answered(
        self,
        deliveries: Sequence[Delivery],
        verdicts: Sequence[Verdict],
        had: Collection[tuple[str, int, int]] = (),
    ) -> None:
        """Notes the verdicts of a batch with other than plain deliveries, one by one. Gaps are left
        out: they are no records. Subscriptions that `had` a record before didn't take it now,
        though others did."""
        if self._keeps and deliveries:
            stretches: list[_Stretch] = [
                (one.topic, one.partition, (one.seq,), (_for(one, verdict, had),), (verdict,))
                for one, verdict in zip(deliveries, verdicts, strict=True)
                if not one.lost_from
            ]
            weight = len(stretches) + sum([len(one.subscriptions) for one in deliveries])
            self._taken.add(stretches, weight, self._now_ms())

    def came_to(self, outcome: Outcome, letter: Delivery) -> None:
        """A consumer group gave that up, or has processed it after all."""
        if self._keeps:
            place = letter.topic, letter.partition, (letter.seq,)
            self._taken.add([(*place, (letter.subscriptions,), (outcome,))], 2, self._now_ms())

    def replayed(self, subscription_id: str, ref: PartitionRef, after_seq: int, seq: int) -> None:
        """The records between that the subscription wants were read from the log for it."""
        if self._keeps:
            read = subscription_id, ref.topic, ref.partition, after_seq, seq
            self._reads.add(read, 1, self._now_ms())

    def repeated(self, subscription_id: str, delivery: Delivery, first: tuple[int, int]) -> None:
        """The subscription had the same event from `first`, so it doesn't get this one."""
        if self._keeps:
            now_ms = self._now_ms()
            topic, seq = delivery.topic, delivery.seq
            where = topic, delivery.partition, seq - 1, seq + 1
            self._left_out.add(LeftOut(now_ms, subscription_id, *where, "repeat", first), 1, now_ms)

    def left_out(self, subscription_id: str, topic: str, resync: Resync) -> None:
        """A subscriber was told that it doesn't get these."""
        if self._keeps:
            now_ms = self._now_ms()
            said = LeftOut(
                now_ms,
                subscription_id,
                topic,
                resync.partition,
                resync.after_seq,
                resync.from_seq,
                resync.reason,
            )
            self._left_out.add(said, 1, now_ms)

    def ended(
        self,
        subscription_id: str,
        topic: str,
        *,
        starts: Mapping[int, int],
        positions: Mapping[int, int],
        reason: str,
    ) -> None:
        if self._keeps:
            former = _Former(subscription_id, topic, starts, positions, reason)
            self._former.add(former, 1 + len(positions), self._now_ms())

    # --- for those who ask -----------------------------------------------------------------------

    @property
    def since_ms(self) -> int:
        """From when on all of it is there."""
        now_ms = self._now_ms()
        rings = self._taken, self._left_out, self._former, self._reads
        return max(ring.since_ms(now_ms) for ring in rings)

    def attempts(self, ref: PartitionRef, seq: int) -> tuple[Attempt, ...]:
        """What was answered when the record came, the oldest first; the last `ATTEMPTS_TOLD`."""
        return tuple(self._found(ref, seq))[-ATTEMPTS_TOLD:]

    def _found(self, ref: PartitionRef, seq: int) -> Iterator[Attempt]:
        self._taken.forget_old(self._now_ms())
        for at_ms, stretches in self._taken:
            for topic, partition, seqs, subscriptions, verdicts in stretches:
                if partition != ref.partition or topic != ref.topic or seq not in seqs:
                    continue
                at = seqs.index(seq)
                verdict = verdicts[at] if len(verdicts) == len(seqs) else verdicts[0]
                yield Attempt(at_ms, self._node_id, verdict, subscriptions[at])

    def said_of(
        self, subscription_ids: Container[str], ref: PartitionRef, seq: int
    ) -> dict[str, LeftOut]:
        """The last that each of these was told which concerns the record, where anything was."""
        self._left_out.forget_old(self._now_ms())
        where = ref.topic, ref.partition
        return {
            said.subscription: said
            for _, said in self._left_out
            if (said.topic, said.partition) == where
            and said.after_seq < seq < said.from_seq
            and said.subscription in subscription_ids
        }

    def read_for(
        self, subscription_ids: Container[str], ref: PartitionRef, seq: int
    ) -> dict[str, int]:
        """When the log was read up to the record for each of these for the last time, where it
        was."""
        self._reads.forget_old(self._now_ms())
        topic, partition = ref.topic, ref.partition
        return {
            name: at_ms
            for at_ms, (name, read_topic, read_partition, after_seq, through_seq) in self._reads
            if read_partition == partition
            and after_seq < seq <= through_seq
            and read_topic == topic
            and name in subscription_ids
        }

    def former(self, ref: PartitionRef, seq: int) -> tuple[Ended, ...]:
        """The last `ENDED_TOLD` of the topic that have ended."""
        self._former.forget_old(self._now_ms())
        of_topic = [(at_ms, one) for at_ms, one in self._former if one.topic == ref.topic]
        last = of_topic[-ENDED_TOLD:]
        said = self.said_of({one.id for _, one in last}, ref, seq) if last else {}
        return tuple(
            Ended(
                at_ms,
                one.id,
                one.topic,
                one.starts.get(ref.partition, 0),
                one.positions.get(ref.partition, 0),
                one.reason,
                said.get(one.id),
            )
            for at_ms, one in last
        )


def _for(one: Delivery, verdict: Verdict, had: Collection[tuple[str, int, int]]) -> tuple[str, ...]:
    """Those whom the verdict is about."""
    if verdict != "accepted" or not had:
        return one.subscriptions
    return tuple(n for n in one.subscriptions if (n, one.partition, one.seq) not in had)
