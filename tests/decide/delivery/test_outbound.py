"""What a lane owes a gateway: whatever the gateway does, nothing is lost and nothing overtakes."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.delivery.batching import BatchLimits
from headgate.decide.delivery.outbound import Outbound
from headgate.decide.delivery.parts import joined, narrowed
from headgate.decide.delivery.pressure import Watermarks
from headgate.decide.delivery.rules import DeliveryRules
from headgate.decide.delivery.steps import Aside, Redrive, Send, SendAgain, Wait
from headgate.model.control.reports import BreakerState
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


Part = tuple[int, int, str]
"""What one subscription is owed of one record: partition, seq and its name."""
NAMES = ("low", "normal", "other")


class World:
    """A gateway and a letter store around one Outbound; what happens is drawn.

    Every part of every record is followed on its own: it is accepted, dead, parked or in memory,
    and in one of these places only.
    """

    def __init__(self, seed: int, *, keeps_dead: bool = True) -> None:
        self.random = random.Random(seed)
        self.rules = replace(RULES, keeps_dead=keeps_dead)
        self.outbound = Outbound(self.rules)
        self.now_s = 0.0
        self.next_seq = defaultdict[int, int](lambda: 1)
        self.owed: set[Part] = set()
        self.parts: dict[tuple[int, int], int] = {}
        """In how many parts each record goes on, and how many of them have left."""
        self.left: Counter[tuple[int, int]] = Counter()
        self.parked: dict[tuple[int, int], Delivery] = {}
        self.dead: set[Part] = set()
        self.accepted: list[Part] = []
        self.passed_over: set[tuple[int, int]] = set()
        """Records that the gateway refused while it took newer ones; they come marked."""
        self.poison: set[tuple[int, int]] = set()
        self.again: dict[int, str] = {}
        self.known: list[Delivery] = []
        """Those that were asked for, so that no other gets their identity."""
        self.asked = 0
        self.looked_for: tuple[Sequence[PartitionRef], list[Delivery]] | None = None
        """Letters that are about to be sent, while other steps may be taken."""
        self.healthy = False

    # --- what comes ------------------------------------------------------------------------------

    def put(self) -> None:
        partition = self.random.randrange(3)
        seq = self.next_seq[partition]
        self.next_seq[partition] += 1
        names = self.random.sample(NAMES, self.random.randint(1, 3))
        if self.random.random() < 0.1:
            self.poison.add((partition, seq))
        one = delivery(partition, seq, *names)
        self.owed |= parts_of(one)
        put = self.outbound.put(one, self.now_s, lambda names: [n for n in names if n == "low"])
        self.parts[partition, seq] = put.parts
        self.keep(put.asides)

    def ask_again(self) -> None:
        self.asked += 1
        one = msgspec.structs.replace(
            delivery(self.random.randrange(3), self.asked), redelivery=True
        )
        if self.outbound.put_again(one, self.now_s):
            self.again[id(one)] = "asked"
            self.known.append(one)

    def keep(self, asides: Sequence[Aside]) -> None:
        for aside in asides:
            one = aside.delivery
            place = one.partition, one.seq
            self.left[place] += 1
            if aside.state == "dead":
                assert self.rules.keeps_dead
                assert not parts_of(one) & self.dead
                self.dead |= parts_of(one)
            else:
                assert place not in self.parked
                self.parked[place] = one
                if one.redelivery:
                    self.passed_over.add(place)

    # --- what is done ----------------------------------------------------------------------------

    def step(self) -> None:
        if self.looked_for is not None and self.random.random() < 0.5:
            self.redrive(*self.looked_for)
            self.looked_for = None
            self.outbound.parked.end()
        step = self.outbound.next(self.now_s)
        self.keep(step.asides)
        self.check()
        match step:
            case Wait(until_s):
                assert until_s > self.now_s
                self.now_s = min(until_s, self.now_s + self.random.choice([0.01, 1.0, 20.0]))
            case Send(deliveries):
                assert 0 < len(deliveries) <= RULES.limits.max_size
                self.send(deliveries)
            case Redrive(refs, each):
                assert len(refs) * each <= RULES.limits.max_size
                assert self.looked_for is None
                self.looked_for = refs, self.letters(refs, each)
                self.outbound.parked.begin()
            case SendAgain(deliveries):
                self.send_again(deliveries)

    def fate(self) -> str:
        return "answers" if self.healthy else self.random.choice(["answers", "answers", "fails"])

    def refuses(self, deliveries: Sequence[Delivery]) -> bool:
        return any((one.partition, one.seq) in self.poison for one in deliveries)

    def send(self, deliveries: list[Delivery]) -> None:
        if self.random.random() < 0.05 and not self.healthy:
            refs = sorted({ref_of(one) for one in deliveries})
            unwritten = self.random.sample(refs, self.random.randint(0, len(refs)))
            self.keep(self.outbound.unwritten(unwritten))
        elif self.fate() == "fails":
            self.fail(jitter=self.random.random())
        elif self.refuses(deliveries) and self.random.random() < 0.7:
            self.keep(self.outbound.refused("no", now_s=self.now_s))
        else:
            verdicts = self.verdicts(deliveries)
            self.take(deliveries, verdicts)
            for one, verdict in zip(deliveries, verdicts, strict=True):
                self.left[one.partition, one.seq] += verdict == "accepted"
            fill = 0.0 if self.healthy else self.random.choice([0.0, 0.0, 0.8, 0.95])
            self.keep(self.outbound.answered(verdicts, fill=fill, now_s=self.now_s))

    def letters(self, refs: Sequence[PartitionRef], each: int) -> list[Delivery]:
        return [
            self.parked[place]
            for ref in refs
            for place in sorted(p for p in self.parked if p[0] == ref.partition)[:each]
        ]

    def redrive(self, refs: Sequence[PartitionRef], letters: list[Delivery]) -> None:
        found = {PartitionRef("flights", one.partition) for one in letters}
        self.outbound.parked.drained(set(refs) - found)
        if self.random.random() < 0.5:
            some = self.random.sample(refs, self.random.randint(1, len(refs)))
            self.outbound.parked.nearly_drained(some, now_s=self.now_s)
        if not letters or not self.outbound.parked.may_redrive(self.now_s):
            return
        self.outbound.parked.redriving(len(letters))
        if self.fate() == "fails":
            self.fail()
        elif self.refuses(letters) and self.random.random() < 0.7:
            if self.outbound.parked.redrive_refused(len(letters), now_s=self.now_s):
                self.reject(letters[0])
        else:
            self.answer(letters, self.verdicts(letters))

    def answer(self, letters: list[Delivery], verdicts: list[Verdict]) -> None:
        self.take(letters, verdicts)
        through = {ref_of(one) for one, v in zip(letters, verdicts, strict=True) if v == "accepted"}
        later = {ref_of(one) for one, v in zip(letters, verdicts, strict=True) if v == "retry"}
        rejected = [one for one, v in zip(letters, verdicts, strict=True) if v == "rejected"]
        through -= {ref_of(one) for one in rejected}
        parked = self.outbound.parked
        self.keep(parked.redriven(fill=0.0, later=later, through=through, now_s=self.now_s))
        for one, verdict in zip(letters, verdicts, strict=True):
            if verdict == "accepted":
                del self.parked[one.partition, one.seq]
        for one in rejected:
            self.reject(one)

    def reject(self, one: Delivery) -> None:
        parked = self.outbound.parked
        asides = parked.letter_rejected(ref_of(one), one.seq, "no", now_s=self.now_s)
        self.keep(asides or ())
        if asides is None:
            del self.parked[one.partition, one.seq]
            self.dead |= parts_of(one)
        elif any(p == one.partition and seq > one.seq for p, seq, _ in self.accepted):
            self.passed_over.add((one.partition, one.seq))

    def send_again(self, deliveries: list[Delivery]) -> None:
        if self.fate() == "fails":
            self.fail()
        elif self.random.random() < 0.2 and not self.healthy:
            for one in self.outbound.again_refused(now_s=self.now_s):
                self.again[id(one)] = "refused"
        else:
            self.outbound.sent_again(fill=0.0, now_s=self.now_s)
            for one in deliveries:
                self.again[id(one)] = "answered"

    def fail(self, *, jitter: float = 1.0) -> None:
        failed = self.outbound.failed("down", now_s=self.now_s, jitter=jitter)
        self.keep(failed.asides)
        for one in failed.given_up:
            assert self.again[id(one)] == "asked"
            self.again[id(one)] = "given up"

    # --- what the gateway does -------------------------------------------------------------------

    def verdicts(self, batch: Sequence[Delivery]) -> list[Verdict]:
        """A gateway that wants something later wants everything after it later, too."""
        taken = len(batch) if self.healthy else self.random.randint(0, len(batch))
        first: list[Verdict] = [
            "rejected" if (one.partition, one.seq) in self.poison else "accepted"
            for one in batch[:taken]
        ]
        return [*first, *["retry" for _ in batch[taken:]]]  # type: ignore[list-item]

    def take(self, batch: Sequence[Delivery], verdicts: list[Verdict]) -> None:
        """Everything older of a partition must have been accepted, or be dead, or have been passed
        over by the gateway itself."""
        for one, verdict in zip(batch, verdicts, strict=True):
            if verdict == "accepted":
                older = {
                    part for part in self.owed if part[0] == one.partition and part[1] < one.seq
                }
                missing = older - set(self.accepted) - self.dead
                missing = {part for part in missing if part[:2] not in self.passed_over}
                refused = {
                    (it.partition, it.seq)
                    for it, what in zip(batch, verdicts, strict=True)
                    if what == "rejected"
                }
                missing = {part for part in missing if part[:2] not in refused}
                assert not missing, f"{one.partition}:{one.seq} overtook {sorted(missing)}"
                assert not parts_of(one) & set(self.accepted), "sent twice"
                self.accepted += sorted(parts_of(one))

    # --- sums ------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        parked = self.outbound.parked
        left = self.parked or parked.refs or parked.halted or len(self.outbound)
        is_told = "asked" not in self.again.values()
        return not left and is_told and set(self.accepted) | self.dead == self.owed

    def in_parked(self) -> set[Part]:
        return {part for one in self.parked.values() for part in parts_of(one)}

    def check(self) -> None:
        places = [set(self.accepted), self.dead, self.in_parked()]
        assert sum(map(len, places)) == len(set().union(*places)), "a part is in one place"
        in_memory = self.owed - set().union(*places)
        waiting = sum(self.parts[place] - self.left[place] for place in self.parts)
        assert waiting == len(self.outbound), "each part leaves once"
        assert len({part[:2] for part in in_memory}) == len(self.outbound)


def parts_of(one: Delivery) -> set[Part]:
    return {(one.partition, one.seq, name) for name in one.subscriptions}


def ref_of(one: Delivery) -> PartitionRef:
    return PartitionRef(one.topic, one.partition)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    puts=st.lists(st.integers(0, 6), max_size=60),
    keeps_dead=st.booleans(),
)
def test_nothing_is_lost_and_nothing_overtakes_whatever_the_gateway_does(
    seed: int, puts: list[int], keeps_dead: bool
) -> None:
    """Features that meet here, each with each: several subscriptions per delivery, of low priority
    and others (shedding), batches refused as a whole (halving), single verdicts of every kind,
    failures and the breaker, pressure of both levels, parking and redriving beside what is live,
    what waits in memory behind the last letters, dead letters that are kept, not kept (halting) or
    not written, and what an operator wants again."""
    world = World(seed, keeps_dead=keeps_dead)
    for count in puts:
        for _ in range(count):
            world.put()
        if world.random.random() < 0.2:
            world.ask_again()
        world.step()
    for _ in range(2 if keeps_dead else 40):
        world.step()
    world.poison.clear()
    world.healthy = True
    for number in range(2_000):
        world.step()
        if number % 20 == 0 and world.is_done:
            break
    assert set(world.accepted) | world.dead == world.owed
    assert not world.parked
    assert not world.outbound.parked.refs
    assert not world.outbound.parked.halted
    assert "asked" not in world.again.values(), "whoever asked was told"
    if not keeps_dead:
        assert not world.dead


def test_what_is_behind_a_dead_letter_that_is_not_written_is_parked_and_the_rest_goes_on() -> None:
    outbound = Outbound(RULES)
    for partition in (0, 1, 0):
        outbound.put(delivery(partition, 1 + partition), 0.0, lambda _: [])
    outbound.flush()
    assert isinstance(outbound.next(0.0), Send)
    asides = outbound.unwritten([PartitionRef("flights", 0)])
    assert [(one.delivery.partition, one.state) for one in asides] == [(0, "parked")] * 2
    step = outbound.next(0.0)
    assert not step.asides
    assert isinstance(step, Send)
    assert [one.partition for one in step.deliveries] == [1]


def test_letters_that_were_looked_for_wait_where_the_gateway_failed_meanwhile() -> None:
    ref = PartitionRef("flights", 0)
    outbound = Outbound(RULES, behind=[ref])
    assert isinstance(outbound.next(0.0), Redrive)
    outbound.parked.begin()
    outbound.put(delivery(1, 1), 0.0, lambda _: [])
    outbound.flush()
    assert isinstance(outbound.next(0.0), Send), "which doesn't wait for letters"
    assert outbound.parked.may_redrive(0.0)
    outbound.failed("down", now_s=0.0)
    assert not outbound.parked.may_redrive(0.0)
    assert outbound.parked.may_redrive(RULES.redrive_every_s)


def test_a_record_of_which_a_part_is_shed_goes_on_in_two_parts() -> None:
    outbound = busy()
    put = outbound.put(delivery(0, 1, "a", "b"), 0.0, lambda _: ["a"])
    assert (put.parts, [one.delivery.subscriptions for one in put.asides]) == (2, [("a",)])
    assert outbound.put(delivery(0, 2, "a"), 0.0, lambda _: ["a"]).parts == 1
    assert outbound.put(delivery(0, 3, "b"), 0.0, lambda _: []).parts == 1


def busy() -> Outbound:
    """A gateway that said just now, at 0.0, that it is at its soft level."""
    outbound = Outbound(RULES)
    outbound.put(delivery(0, 1), 0.0, lambda _: [])
    outbound.flush()
    assert isinstance(outbound.next(0.0), Send)
    outbound.answered(["accepted"], fill=0.8, now_s=0.0)
    return outbound


def test_a_gateway_that_is_only_shed_for_is_asked_again() -> None:
    """Or it would stay behind for ever: what is shed gets no answer."""
    outbound = busy()
    later_s = RULES.redrive_every_s
    for seq, now_s in enumerate([1.0, later_s - 1.0], 2):
        put = outbound.put(delivery(0, seq, "a"), now_s, lambda _: ["a"])
        assert [aside.reason for aside in put.asides] == ["shed"]
    assert not outbound.put(delivery(0, 4, "a"), later_s, lambda _: ["a"]).asides
    assert isinstance(outbound.next(later_s), Send)
    outbound.answered(["accepted"], fill=0.1, now_s=later_s)
    assert not outbound.put(delivery(0, 5, "a"), later_s, lambda _: ["a"]).asides


def test_a_gateway_that_fails_now_and_then_gets_its_letters_all_the_same() -> None:
    outbound = Outbound(RULES, behind=[PartitionRef("flights", 9)])
    outbound.flush()
    outbound.failed("down", now_s=0.0)
    for second in range(1, 12):
        now_s = float(second)
        if isinstance(outbound.next(now_s), Redrive):
            break
        outbound.put(delivery(0, second), now_s, lambda _: [])
        assert isinstance(outbound.next(now_s), Send)
        outbound.failed("down", now_s=now_s)
        assert isinstance(outbound.next(now_s + 0.5), Send)
        outbound.answered(["accepted"], fill=0.0, now_s=now_s + 0.5)
    else:
        pytest.fail("letters never had their turn")


def test_letters_of_an_overloaded_gateway_are_tried_though_more_is_parked_all_the_time() -> None:
    outbound = Outbound(RULES)
    outbound.condition.pressure.filled(0.95)
    for partition in range(20):
        outbound.put(delivery(partition, 1), partition * 1.0, lambda _: [])
    assert isinstance(outbound.next(20.0), Redrive)


@pytest.mark.parametrize("live", [False, True], ids=["alone", "beside what is small"])
@pytest.mark.parametrize("fitting", [50, 7, 1])
def test_what_is_too_much_for_the_timeout_arrives_in_smaller_batches(
    fitting: int, live: bool
) -> None:
    """Large documents over a slow link: of partition 0, only so many arrive in time at once."""
    outbound, store, arrived, now_s, live_seq = Outbound(DeliveryRules()), set[int](), 0, 0.0, 0
    for seq in range(1, 61):
        outbound.put(delivery(0, seq), now_s, lambda _: [])
    came: Sequence[Aside] = ()
    while arrived < 60 and now_s < 1_200:
        put: Sequence[Aside] = ()
        if live and now_s >= live_seq:
            live_seq += 1
            put = outbound.put(delivery(1, live_seq), now_s, lambda _: []).asides
        step = outbound.next(now_s)
        asides = [one.delivery for one in (*came, *put, *step.asides)]
        came = ()
        store |= {one.seq for one in asides if one.partition == 0}
        if isinstance(step, Wait):
            now_s = min(step.until_s, now_s + 1.0)
            continue
        letters = sorted(store)[: step.each] if isinstance(step, Redrive) else []
        if isinstance(step, Redrive) and not letters:
            outbound.parked.drained(step.refs)
            continue
        if isinstance(step, Redrive):
            outbound.parked.redriving(len(letters))
        seqs = letters
        if isinstance(step, Send):
            seqs = [one.seq for one in step.deliveries if one.partition == 0]
        now_s += min(5.0, 0.1 * len(seqs))
        if len(seqs) > fitting:
            came = outbound.failed("nothing came within 5 s", now_s=now_s).asides
        elif isinstance(step, Send):
            came = outbound.answered(["accepted"] * len(step.deliveries), fill=0.0, now_s=now_s)
            arrived += len(seqs)
        else:
            came = outbound.parked.redriven(fill=0.0, now_s=now_s)
            store -= set(letters)
            arrived += len(letters)
    assert arrived == 60


@pytest.mark.parametrize("stuck", [1, 90, 150])
def test_a_partition_that_is_wanted_later_holds_no_other(stuck: int) -> None:
    """Some subscriber has no room for redeliveries of partition 0; partition 1 is busy."""
    outbound, now_s, seq, taken = Outbound(DeliveryRules()), 0.0, 0, 0
    parked: set[int] = set()
    for number in range(1, stuck + 1):
        outbound.put(delivery(0, number), 0.0, lambda _: [])
    while now_s < 20.0:
        while seq < now_s * 100:
            seq += 1
            put = outbound.put(delivery(1, seq), now_s, lambda _: [])
            parked |= {one.delivery.partition for one in put.asides}
        step = outbound.next(now_s)
        parked |= {one.delivery.partition for one in step.asides}
        if isinstance(step, Send):
            verdicts: list[Verdict] = [
                "accepted" if one.partition else "retry" for one in step.deliveries
            ]
            now_s += 0.01
            taken += verdicts.count("accepted")
            asides = outbound.answered(verdicts, fill=0.0, now_s=now_s)
            parked |= {one.delivery.partition for one in asides}
        elif isinstance(step, Wait):
            now_s = min(step.until_s, now_s + 0.01)
        else:
            assert isinstance(step, Redrive)
            outbound.parked.redriving(1)
            joined = outbound.parked.redriven(fill=0.0, later=step.refs, now_s=now_s)
            parked |= {one.delivery.partition for one in joined}
        assert len(outbound) <= stuck + 50, "partition 1 keeps pace"
    assert parked == {0}
    assert taken >= seq - 50


def test_a_partition_is_held_for_longer_each_time_until_something_of_it_goes_forward() -> None:
    outbound, now_s = Outbound(RULES), 0.0
    pauses: list[float] = []
    outbound.put(delivery(0, 1), now_s, lambda _: [])
    outbound.put(delivery(0, 2), now_s, lambda _: [])
    for other, verdict in enumerate(["retry", "retry", "accepted", "retry"], 1):
        outbound.put(delivery(1, other), now_s, lambda _: [])
        step = outbound.next(now_s + 0.05)
        assert isinstance(step, Send)
        left: list[Verdict] = ["retry" for one in step.deliveries if one.partition == 0]
        left[0] = "accepted" if verdict == "accepted" else "retry"
        said: list[Verdict] = [
            left.pop(0) if one.partition == 0 else "accepted" for one in step.deliveries
        ]
        asides = outbound.answered(said, fill=0.0, now_s=now_s)
        wait = outbound.next(now_s)
        assert isinstance(wait, Wait)
        assert not (*step.asides, *asides, *wait.asides)
        pauses.append(round(wait.until_s - now_s, 3))
        now_s = wait.until_s
    assert pauses == [0.1, 0.2, 0.1, 0.2]


def test_what_is_held_is_parked_dropped_and_sent_again_with_the_rest() -> None:
    def held() -> Outbound:
        outbound = Outbound(RULES)
        for partition, seq in ((0, 1), (0, 2), (1, 1)):
            outbound.put(delivery(partition, seq), 0.0, lambda _: [])
        assert isinstance(outbound.next(1.0), Send)
        outbound.answered(["retry", "retry", "accepted"], fill=0.0, now_s=1.0)
        outbound.put(delivery(0, 3), 1.0, lambda _: [])
        assert (len(outbound), outbound.next(1.0)) == (3, Wait(1.1))
        return outbound

    step = held().next(1.1)
    assert isinstance(step, Send)
    assert [one.seq for one in step.deliveries] == [1, 2, 3]
    moved = held()
    moved.renewed()
    assert isinstance(moved.next(1.0), Send)
    dropped = held()
    dropped.drop(PartitionRef("flights", 0))
    assert len(dropped) == 0
    parked = held()
    for _ in range(RULES.breaker_threshold):
        assert not parked.failed("down", now_s=1.0).asides
    assert [one.delivery.seq for one in parked.next(1.0).asides] == [1, 2, 3]
    old = held()
    old.put(delivery(1, 2), 30.0, lambda _: [])
    asides = old.next(62.0).asides
    assert {(one.delivery.partition, one.reason) for one in asides} == {(0, "too_old")}


def test_a_gateway_that_is_owed_nothing_any_more_is_in_no_trouble_after_a_while() -> None:
    """Or one that others send to without a hitch is in trouble for ever, as this lane has nothing
    to try it with."""
    ref, timeout_s = PartitionRef("flights", 0), RULES.breaker_timeout_s
    outbound = Outbound(RULES, behind=[ref])
    for _ in range(RULES.breaker_threshold):
        outbound.failed("down", now_s=0.0)
    assert outbound.next(timeout_s - 1) == Wait(timeout_s)
    assert isinstance(outbound.next(timeout_s), Redrive), "while it is owed something, it is tried"
    outbound.parked.drained([ref])
    assert outbound.next(timeout_s) == Wait(float("inf"))
    assert not outbound.condition.struggles
    assert not outbound.condition.error


def test_a_gateway_that_is_owed_nothing_before_its_time_is_up_waits_for_that() -> None:
    outbound = Outbound(RULES)
    for _ in range(RULES.breaker_threshold):
        outbound.failed("down", now_s=0.0)
    assert outbound.next(1.0) == Wait(RULES.breaker_timeout_s)
    assert outbound.condition.struggles


def test_partitions_take_turns_when_letters_are_sent() -> None:
    refs = [PartitionRef("flights", number) for number in range(10)]
    outbound = Outbound(RULES, behind=refs)
    turns = []
    for _ in range(5):
        step = outbound.next(0.0)
        assert isinstance(step, Redrive)
        outbound.parked.redriving(len(step.refs))
        outbound.parked.redriven(fill=0.0, now_s=0.0)
        turns.append([ref.partition for ref in step.refs])
    assert turns == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_a_partition_that_is_wanted_later_rests_alone() -> None:
    refs = [PartitionRef("flights", number) for number in range(2)]
    outbound = Outbound(RULES, behind=refs)
    assert outbound.next(0.0) == Redrive(tuple(refs), 2)
    outbound.parked.redriven(fill=0.0, later=[refs[0]], now_s=0.0)
    assert outbound.next(0.0) == Redrive((refs[1],), 4)
    outbound.parked.drained([refs[1]])
    assert outbound.next(0.0) == Wait(RULES.redrive_every_s)
    assert outbound.next(RULES.redrive_every_s) == Redrive((refs[0],), 4)


def test_what_an_operator_wants_and_what_is_parked_take_turns() -> None:
    ref = PartitionRef("flights", 0)
    outbound = Outbound(RULES, behind=[ref])
    for seq in range(1, 13):
        outbound.put_again(delivery(1, seq), 0.0)
    turns = []
    for _ in range(6):
        step = outbound.next(0.0)
        turns.append(type(step))
        if isinstance(step, SendAgain):
            outbound.sent_again(fill=0.0, now_s=0.0)
        else:
            outbound.parked.redriving(1)
            outbound.parked.redriven(fill=0.0, now_s=0.0)
    assert turns == [Redrive, SendAgain] * 3


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


def sent(outbound: Outbound, count: int, now_s: float) -> None:
    """So many are put and on their way."""
    for seq in range(1, count + 1):
        outbound.put(delivery(0, seq), now_s, lambda _: [])
    assert len(sending(outbound, now_s)) == count


def sending(outbound: Outbound, now_s: float) -> list[Delivery]:
    step = outbound.next(now_s)
    assert isinstance(step, Send)
    return step.deliveries


def test_what_nobody_wants_any_more_says_nothing_of_a_gateway_that_fails() -> None:
    """It was on its way and was not sent."""
    outbound = Outbound(replace(RULES, breaker_threshold=2, max_attempts=9))
    outbound.flush()
    sent(outbound, 1, 0.0)
    outbound.failed("down", now_s=0.0)
    assert isinstance(outbound.next(1.0), Send)
    outbound.answered(["no_subscriber"], unsent=1, fill=0.0, now_s=1.0)
    assert outbound.condition.error == "", "nobody waits for it any more"
    sent(outbound, 1, 2.0)
    outbound.failed("down", now_s=2.0)
    assert outbound.condition.breaker.state == "open"
    assert isinstance(outbound.next(2.0), Wait)


def test_nor_is_it_a_trial_of_one_that_was_left_alone() -> None:
    outbound = Outbound(replace(RULES, breaker_threshold=1, breaker_timeout_s=30.0))
    outbound.flush()
    outbound.failed("down", now_s=0.0)
    states: list[BreakerState] = []
    sent(outbound, 1, 30.0)
    states.append(outbound.condition.breaker.state)
    outbound.answered(["no_subscriber"], unsent=1, fill=0.0, now_s=30.0)
    states.append(outbound.condition.breaker.state)
    sent(outbound, 1, 30.0)
    outbound.answered(["accepted"], fill=0.0, now_s=30.0)
    states.append(outbound.condition.breaker.state)
    assert states == ["half_open", "open", "closed"]


def test_a_batch_fits_as_far_as_it_was_sent() -> None:
    outbound = Outbound(replace(RULES, buffer_timeout_s=600.0))
    outbound.flush()
    sent(outbound, 4, 0.0)
    outbound.refused("too large", now_s=0.0)
    for seq in range(5, 11):
        outbound.put(delivery(0, seq), 60.0, lambda _: [])
    for _ in range(2):
        assert len(sending(outbound, 60.0)) == 2
        outbound.answered(["no_subscriber", "accepted"], unsent=1, fill=0.0, now_s=60.0)
    assert len(sending(outbound, 60.0)) == 2
    outbound.answered(["accepted"] * 2, fill=0.0, now_s=60.0)
    assert len(sending(outbound, 60.0)) == 4


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
    assert not outbound.parked.refs


def test_a_narrowed_delivery_keeps_what_belongs_to_its_subscriptions() -> None:
    whole = msgspec.structs.replace(delivery(0, 1, "a", "b", "c", since=(7, 8, 9)), left=("a", "c"))
    some = narrowed(whole, frozenset({"b", "c"}))
    assert (some.subscriptions, some.since, some.left) == (("b", "c"), (8, 9), ("c",))
    assert narrowed(whole, frozenset({"a", "b", "c", "d"})) is whole


def test_joined_deliveries_are_for_whom_either_of_them_is() -> None:
    one = msgspec.structs.replace(delivery(0, 1, "a", "b", since=(3, 4)), left=("a", "b"))
    other = msgspec.structs.replace(delivery(0, 1, "b", "c"), left=("c",), epoch=7, redelivery=True)
    both = joined(one, other)
    assert (both.subscriptions, both.since) == (("a", "b", "c"), (3, 4, 0))
    assert both.left == ("a", "c"), "the newer one knows better what left whom"
    assert (both.epoch, both.redelivery) == (7, True)
    assert joined(one, one) is one
    reset = msgspec.structs.replace(other, in_turn=True)
    assert (joined(one, reset).in_turn, joined(reset, other).in_turn) == (True, False)
    assert (joined(one, other).in_turn, joined(other, reset).in_turn) == (False, False)
    gap = msgspec.structs.replace(delivery(0, 9), subscriptions=(), lost_from=5)
    assert joined(gap, msgspec.structs.replace(gap, lost_from=3)).lost_from == 3


def test_a_gap_and_a_record_at_its_end_are_joined_to_the_gap() -> None:
    """A record that was parked and is no longer in the log; those before it must be told of."""
    gap = msgspec.structs.replace(delivery(0, 9), subscriptions=(), lost_from=5)
    record = delivery(0, 9, "a")
    assert joined(record, gap) == gap
    assert joined(gap, record) == gap
