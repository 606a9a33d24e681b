"""Gateways that take only so much at once: what is sent live and what is parked find out each for
itself, and neither waits for the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import pytest

from headgate.decide.delivery.outbound import Outbound
from headgate.decide.delivery.rules import DeliveryRules
from headgate.decide.delivery.steps import Aside, Redrive, Send, SendAgain, Wait
from headgate.model.delivery import Delivery, Verdict
from headgate.model.event import PartitionRef

Fate = Literal["taken", "refused", "failed"]
LETTERS, LIVE = (PartitionRef("flights", number) for number in range(2))


def delivery(ref: PartitionRef, seq: int) -> Delivery:
    raw = msgspec.Raw(b"{}")
    return Delivery(ref.topic, ref.partition, seq, "id", None, "", "insert", raw, ("s",), 1)


class Link:
    """One Outbound, its letters of one partition, what comes live of another, and a gateway:
    `fate` says what becomes of a batch. A batch takes `round_trip_s` or, when it fails, 5 s."""

    def __init__(self, fate: Callable[[list[Delivery]], Fate], *, letters: int = 0) -> None:
        self.fate = fate
        self.letters = list(range(1, letters + 1))
        self.outbound = Outbound(DeliveryRules(), [LETTERS] if letters else ())
        self.live = 0
        self.live_per_s = 0
        self.round_trip_s = 0.01
        self.now_s = 0.0
        self.taken: dict[PartitionRef, list[int]] = {LETTERS: [], LIVE: []}
        self.dead: list[int] = []
        self.sizes: dict[type, list[int]] = {Send: [], Redrive: [], SendAgain: []}
        self.refusals = 0
        self.told: list[int] = []
        """What an operator wanted, and was answered."""

    def run(self, for_s: float, *, until: Callable[[], bool] = lambda: False) -> None:
        end_s = self.now_s + for_s
        while self.now_s < end_s and not until():
            while self.live < self.now_s * self.live_per_s:
                self.live += 1
                put = self.outbound.put(delivery(LIVE, self.live), self.now_s, lambda _: [])
                self.keeps(put.asides)
            step = self.outbound.next(self.now_s)
            self.keeps(step.asides)
            match step:
                case Wait(until_s):
                    self.now_s = min(until_s, self.now_s + 0.01)
                case Redrive(refs, each):
                    self.redrive(refs, self.letters[:each])
                case Send(deliveries) | SendAgain(deliveries):
                    self.send(step, deliveries)

    def redrive(self, refs: Sequence[PartitionRef], seqs: list[int]) -> None:
        if not seqs:
            self.outbound.parked.drained(refs)
            return
        self.outbound.parked.redriving(len(seqs))
        match self.fate_of(Redrive, [delivery(LETTERS, seq) for seq in seqs]):
            case "taken":
                self.keeps(self.outbound.parked.redriven(fill=0.0, now_s=self.now_s))
                self.take(LETTERS, seqs)
                self.letters = self.letters[len(seqs) :]
            case "refused" if self.outbound.parked.redrive_refused(len(seqs), now_s=self.now_s):
                self.dead.append(self.letters.pop(0))
            case "failed":
                self.keeps(self.outbound.failed("no answer", now_s=self.now_s).asides)

    def send(self, step: Send | SendAgain, deliveries: list[Delivery]) -> None:
        seqs = [one.seq for one in deliveries]
        fate = self.fate_of(type(step), deliveries)
        if fate == "failed":
            self.keeps(self.outbound.failed("no answer", now_s=self.now_s).asides)
        elif isinstance(step, SendAgain) and fate == "refused":
            refused = self.outbound.again_refused(now_s=self.now_s)
            self.told += [one.seq for one in refused]
        elif isinstance(step, SendAgain):
            self.outbound.sent_again(fill=0.0, now_s=self.now_s)
            self.told += seqs
        elif fate == "refused":
            self.keeps(self.outbound.refused("no", now_s=self.now_s))
        else:
            verdicts: list[Verdict] = ["accepted"] * len(seqs)
            self.keeps(self.outbound.answered(verdicts, fill=0.0, now_s=self.now_s))
            self.take(LIVE, seqs)

    def keeps(self, asides: Sequence[Aside]) -> None:
        assert not asides, "what comes live isn't parked"

    def fate_of(self, kind: type, deliveries: list[Delivery]) -> Fate:
        fate = self.fate(deliveries)
        self.sizes[kind].append(len(deliveries))
        self.refusals += fate == "refused"
        self.now_s += 5.0 if fate == "failed" else self.round_trip_s
        return fate

    def take(self, ref: PartitionRef, seqs: list[int]) -> None:
        taken = self.taken[ref]
        assert not taken or seqs[0] > taken[-1], "nothing overtakes"
        taken += seqs


def at_most(count: int, ref: PartitionRef, fate: Fate) -> Callable[[list[Delivery]], Fate]:
    """A gateway that takes so many of a partition at once, and as many of others as there are."""

    def judged(deliveries: list[Delivery]) -> Fate:
        return (
            fate if sum(one.partition == ref.partition for one in deliveries) > count else "taken"
        )

    return judged


@pytest.mark.parametrize("fitting", [1, 4, 33])
@pytest.mark.parametrize("live_per_s", [0, 300, 4_000])
def test_letters_refused_as_too_large_arrive_in_smaller_batches_beside_any_traffic(
    fitting: int, live_per_s: int
) -> None:
    link = Link(at_most(fitting, LETTERS, "refused"), letters=200)
    link.live_per_s = live_per_s
    link.run(10.0, until=lambda: not link.outbound.parked.refs)
    assert link.taken[LETTERS] == list(range(1, 201))
    assert not link.dead
    assert link.refusals <= 10
    assert len(link.outbound) <= 500, "what comes live keeps pace"


@pytest.mark.parametrize("fitting", [1, 4, 33])
def test_what_is_refused_live_is_sent_in_smaller_batches_while_letters_flow(fitting: int) -> None:
    link = Link(at_most(fitting, LIVE, "refused"), letters=20_000)
    link.live_per_s = 40
    link.run(5.0)
    assert len(link.taken[LIVE]) >= 190
    assert link.refusals <= 10
    assert link.sizes[Redrive].count(100) >= 50, "letters go on in full batches"


@pytest.mark.parametrize("live_per_s", [0, 4_000])
@pytest.mark.parametrize("poison", [{1}, {40}, {100}, {3, 4, 77}], ids=str)
def test_a_letter_that_is_refused_alone_dies_and_holds_no_other(
    live_per_s: int, poison: set[int]
) -> None:
    def judged(deliveries: list[Delivery]) -> Fate:
        found = any(one.partition == LETTERS.partition and one.seq in poison for one in deliveries)
        return "refused" if found else "taken"

    link = Link(judged, letters=100)
    link.live_per_s = live_per_s
    link.run(10.0, until=lambda: not link.outbound.parked.refs)
    assert link.dead == sorted(poison)
    assert link.taken[LETTERS] == [seq for seq in range(1, 101) if seq not in poison]


def test_what_an_operator_wants_arrives_in_smaller_batches_beside_any_traffic() -> None:
    link = Link(at_most(4, LETTERS, "refused"))
    link.live_per_s = 4_000
    link.run(1.0)
    for seq in range(1, 101):
        assert link.outbound.put_again(delivery(LETTERS, seq), link.now_s)
    link.run(10.0, until=lambda: len(link.told) == 100)
    assert link.told == list(range(1, 101))
    assert link.refusals <= 10


@pytest.mark.parametrize("fitting", [1, 7, 60, 99])
def test_letters_that_take_too_long_together_arrive_at_a_good_pace(fitting: int) -> None:
    link = Link(at_most(fitting, LETTERS, "failed"), letters=600 * fitting)
    link.round_trip_s = 1.0
    link.run(600.0)
    assert len(link.taken[LETTERS]) >= 0.4 * fitting * 600


def test_when_more_fits_again_letters_go_in_full_batches() -> None:
    link = Link(at_most(3, LETTERS, "failed"), letters=30_000)
    link.round_trip_s = 1.0
    link.run(2_000.0)
    link.fate = lambda _: "taken"
    link.run(400.0)
    assert link.sizes[Redrive][-1] == 100


def test_letters_pause_after_a_failure_unless_fewer_went_through_just_before() -> None:
    link = Link(at_most(100, LETTERS, "failed"), letters=1_000)
    link.run(0.1, until=lambda: len(link.taken[LETTERS]) == 300)
    link.fate = at_most(40, LETTERS, "failed")
    link.run(0.1)
    assert isinstance(link.outbound.next(link.now_s), Wait), "as many went through before"
    link.run(30.0, until=lambda: link.sizes[Redrive][-2:] == [25, 50])
    assert link.outbound.next(link.now_s) == Redrive((LETTERS,), 25)
