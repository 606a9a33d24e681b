"""What a lane owes a gateway: whatever the gateway does, nothing is lost and nothing overtakes."""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.batching import BatchLimits
from headgate.decide.delivery.outbound import (
    DeliveryRules,
    Outbound,
    Redrive,
    Send,
    Wait,
    narrowed,
)
from headgate.decide.delivery.pressure import Watermarks
from headgate.model.delivery import Delivery, Verdict
from headgate.model.event import PartitionRef

RULES = DeliveryRules(
    limits=BatchLimits(max_size=4),
    watermarks=Watermarks(queue_size=12),
    breaker_threshold=3,
)


def delivery(partition: int, seq: int, *names: str, since: tuple[int, ...] = ()) -> Delivery:
    return Delivery(
        "flights",
        partition,
        seq,
        f"{partition}-{seq}",
        None,
        "",
        "insert",
        msgspec.Raw(b"{}"),
        names or ("s",),
        1,
        since=since,
    )


class World:
    """A gateway and a letter store around one Outbound; what happens is drawn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.outbound = Outbound(RULES)
        self.now_s = 0.0
        self.next_seq = defaultdict[int, int](lambda: 1)
        self.parked: dict[tuple[int, int], Delivery] = {}
        self.dead: set[tuple[int, int]] = set()
        self.accepted: list[tuple[int, int]] = []
        self.healthy = False

    def put(self) -> None:
        partition = self.random.randrange(3)
        seq = self.next_seq[partition]
        self.next_seq[partition] += 1
        low = ["s"] if self.random.random() < 0.2 else []
        self.outbound.put(delivery(partition, seq), self.now_s, lambda _: low)
        self.keep_asides()

    def keep_asides(self) -> None:
        for aside in self.outbound.take_asides():
            place = aside.delivery.partition, aside.delivery.seq
            if aside.state == "dead":
                assert place not in self.dead
                self.dead.add(place)
            else:
                assert place not in self.parked
                self.parked[place] = aside.delivery

    def step(self) -> None:
        step = self.outbound.next(self.now_s)
        self.keep_asides()
        match step:
            case Wait(until_s):
                assert until_s > self.now_s
                self.now_s = min(until_s, self.now_s + self.random.choice([0.01, 1.0, 20.0]))
            case Send(deliveries):
                assert 0 < len(deliveries) <= RULES.limits.max_size
                self.send(deliveries)
            case Redrive(limit):
                self.redrive(limit)
        self.keep_asides()

    def send(self, deliveries: list[Delivery]) -> None:
        fate = "answers" if self.healthy else self.random.choice(["answers", "fails", "refuses"])
        if fate == "fails":
            self.outbound.failed("down", now_s=self.now_s, jitter=self.random.random())
        elif fate == "refuses":
            self.outbound.refused("no")
        else:
            verdicts = self.verdicts(len(deliveries))
            self.take(deliveries, verdicts)
            fill = 0.0 if self.healthy else self.random.choice([0.0, 0.0, 0.8, 0.95])
            self.outbound.answered(verdicts, fill=fill, now_s=self.now_s)

    def redrive(self, limit: int) -> None:
        letters = [self.parked[place] for place in sorted(self.parked)][:limit]
        if not letters:
            self.outbound.drained()
            return
        self.outbound.redriving()
        fate = "answers" if self.healthy else self.random.choice(["answers", "fails", "refuses"])
        if fate == "fails":
            self.outbound.failed("down", now_s=self.now_s)
            return
        if fate == "refuses":
            if self.outbound.redrive_refused(len(letters)):
                self.forget(letters[0])
                self.dead.add((letters[0].partition, letters[0].seq))
            return
        verdicts = self.verdicts(len(letters))
        self.take(letters, verdicts)
        for one, verdict in zip(letters, verdicts, strict=True):
            if verdict != "retry":
                self.forget(one)
            if verdict == "rejected":
                self.dead.add((one.partition, one.seq))
        self.outbound.redriven(fill=0.0, again="retry" in verdicts, now_s=self.now_s)

    def forget(self, one: Delivery) -> None:
        del self.parked[one.partition, one.seq]

    def verdicts(self, count: int) -> list[Verdict]:
        """A gateway that wants something later wants everything after it later, too."""
        taken = count if self.healthy else self.random.randint(0, count)
        first: list[Verdict] = [
            "rejected" if not self.healthy and self.random.random() < 0.1 else "accepted"
            for _ in range(taken)
        ]
        return [*first, *["retry" for _ in range(count - taken)]]  # type: ignore[list-item]

    def take(self, batch: list[Delivery], verdicts: list[Verdict]) -> None:
        """Everything older of a partition must have been accepted, or be dead."""
        through = set(self.accepted) | self.dead
        for one, verdict in zip(batch, verdicts, strict=True):
            place = one.partition, one.seq
            if verdict == "accepted":
                older = {(one.partition, seq) for seq in range(1, one.seq)}
                assert older <= through, f"{place} overtook {sorted(older - through)}"
                self.accepted.append(place)
            if verdict != "retry":
                through.add(place)

    def everything(self) -> set[tuple[int, int]]:
        return {
            (partition, seq) for partition, end in self.next_seq.items() for seq in range(1, end)
        }


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), puts=st.lists(st.integers(0, 6), max_size=60))
def test_nothing_is_lost_and_nothing_overtakes_whatever_the_gateway_does(
    seed: int, puts: list[int]
) -> None:
    world = World(seed)
    for count in puts:
        for _ in range(count):
            world.put()
        world.step()
        waiting = len(world.outbound)
        known = len(world.accepted) + len(world.dead) + len(world.parked) + waiting
        assert known == len(world.everything()), "every delivery is in one place"
    world.healthy = True
    for _ in range(2_000):
        world.step()
    assert set(world.accepted) | world.dead == world.everything()
    assert len(world.accepted) == len(set(world.accepted)), "nothing was sent twice"
    assert not world.parked
    assert not world.outbound.behind


def test_a_full_batch_goes_at_once_and_a_larger_one_is_split() -> None:
    outbound = Outbound(RULES)
    for seq in range(1, 7):
        outbound.put(delivery(0, seq), 0.0, lambda _: [])
    step = outbound.next(0.0)
    assert isinstance(step, Send)
    assert [one.seq for one in step.deliveries] == [1, 2, 3, 4]


def test_what_comes_next_is_known_once_it_is_a_full_batch() -> None:
    outbound = Outbound(RULES)
    for seq in range(1, 8):
        outbound.put(delivery(0, seq), 0.0, lambda _: [])
    assert isinstance(outbound.next(0.0), Send)
    assert outbound.upcoming() == []
    outbound.put(delivery(0, 8), 0.0, lambda _: [])
    upcoming = outbound.upcoming()
    outbound.answered(["accepted"] * 4, fill=0.0, now_s=0.0)
    assert outbound.next(0.0) == Send(upcoming)
    assert [one.seq for one in upcoming] == [5, 6, 7, 8]


def test_a_retry_holds_what_is_behind_it() -> None:
    outbound = Outbound(RULES)
    outbound.put(delivery(0, 1), 0.0, lambda _: [])
    assert isinstance(outbound.next(0.0), Send)
    outbound.failed("down", now_s=0.0)
    outbound.put(delivery(1, 1), 0.0, lambda _: [])
    assert outbound.next(0.0) == Wait(0.1)
    step = outbound.next(0.1)
    assert isinstance(step, Send)
    assert [(one.partition, one.seq) for one in step.deliveries] == [(0, 1), (1, 1)]


def test_a_partition_that_is_dropped_takes_what_waits_with_it() -> None:
    outbound = Outbound(RULES, behind=[PartitionRef("flights", 0)])
    outbound.put(delivery(1, 1), 0.0, lambda _: [])
    outbound.put(delivery(2, 1), 0.0, lambda _: [])
    outbound.drop(PartitionRef("flights", 0))
    outbound.drop(PartitionRef("flights", 1))
    step = outbound.next(1.0)
    assert isinstance(step, Send)
    assert [one.partition for one in step.deliveries] == [2]
    assert not outbound.behind


def test_a_narrowed_delivery_keeps_what_belongs_to_its_subscriptions() -> None:
    whole = msgspec.structs.replace(delivery(0, 1, "a", "b", "c", since=(7, 8, 9)), left=("a", "c"))
    some = narrowed(whole, frozenset({"b", "c"}))
    assert (some.subscriptions, some.since, some.left) == (("b", "c"), (8, 9), ("c",))
    assert narrowed(whole, frozenset({"a", "b", "c", "d"})) is whole
