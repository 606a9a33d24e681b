"""What one lane owes one gateway, and what to do about it next. No I/O; time is an argument.

Deliveries go out in the order they came, one batch at a time (backlog.py). A batch that fails for
the moment is sent again, and holds what is behind it; where the gateway wants only some of it
later, their partitions wait by themselves, and the others go on. What can't be sent is set aside,
to be parked (the gateway doesn't answer, is too far behind, or kept it waiting for too long) or as
a dead letter (it is refused for good, or of low priority while the gateway is behind). From then on
everything newer of that partition is set aside too, until the parked letters are through, which
`parked` keeps track of.

Where no dead letters are kept, a record that is refused for good is parked instead, and its
partition halts: its letters are sent one at a time, so that nothing passes the one that is refused,
which is tried again after every pause.

Beside the order stand deliveries that an operator wants again (sent_again.py): the operator hears
how each of them ended.

Invariants: a delivery that was put leaves in exactly one way per part: with a verdict, aside, or
because its partition was dropped. Per partition nothing is sent while something older is parked or
waits. What is set aside is returned by the call that led to it, and kept nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from headgate.decide.delivery.backlog import Backlog
from headgate.decide.delivery.batch_size import BatchSize
from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.condition import Condition
from headgate.decide.delivery.held_partitions import Waiting
from headgate.decide.delivery.parts import for_nobody_else, narrowed, ref_of
from headgate.decide.delivery.rules import LEFT, LOOK_AGAIN_S, DeliveryRules
from headgate.decide.delivery.sent_again import Again
from headgate.decide.delivery.steps import (
    Aside,
    Failed,
    Put,
    Redrive,
    Send,
    SendAgain,
    Step,
    Wait,
)
from headgate.decide.feed.redelivered import marked
from headgate.decide.letters.parked import Parked
from headgate.model.delivery import SETTLING_VERDICTS, Delivery, Verdict
from headgate.model.event import PartitionRef
from headgate.model.letters import LetterReason

HURRIED_S = 1.0
"""The longest wait in memory where nothing is to wait for long."""
WANTED_LATER = "the gateway wants it later"
UNWRITTEN = "a dead letter of something older can't be written"

Low = Callable[[Sequence[str]], Sequence[str]]
"""Picks the subscriptions that are of low priority."""

PUT, PUT_AND_STIRRED = Put(), Put(stirs=True)
NOTHING: tuple[Aside, ...] = ()


class Outbound:
    """`behind`: the partitions that have parked letters for this gateway when it begins."""

    def __init__(self, rules: DeliveryRules, behind: Iterable[PartitionRef] = ()) -> None:
        self._rules = rules
        self._condition = condition = Condition(rules)
        self._backlog = backlog = Backlog(rules.backoff)
        self._again = Again()
        self._size = BatchSize(rules.limits.max_size)
        self.parked = Parked(
            rules,
            behind,
            condition=condition,
            backlog=backlog,
            size=BatchSize(rules.limits.max_size),
        )
        self._sent_s = -NEVER
        self._letters_next = False
        self._again_next = False
        self._flushing = False

    def __len__(self) -> int:
        """What waits in memory, on its way included."""
        return len(self._backlog) + self.parked.waiting

    @property
    def size_bytes(self) -> int:
        """Of the documents of all that."""
        return self._backlog.size_bytes + self.parked.waiting_bytes

    @property
    def attempts(self) -> int:
        """How often what is sent next has failed already."""
        return self._condition.attempts

    @property
    def condition(self) -> Condition:
        """How the gateway fares, for the lane's reports."""
        return self._condition

    # --- what comes in ---------------------------------------------------------------------------

    def put(self, delivery: Delivery, now_s: float, low: Low) -> Put:
        """Takes in what is to be delivered. `low` is asked only while the gateway is behind."""
        backlog, parked, condition = self._backlog, self.parked, self._condition
        parts, asides = 1, NOTHING
        if parked.refs and (ref := ref_of(delivery)) in parked.refs:
            asides = parked.put_behind(ref, delivery, now_s)
        elif not condition.breaker.allows(now_s):
            asides = (parked.park(delivery, "unreachable"),)
        else:
            level = condition.pressure.weigh(
                len(backlog) + parked.waiting, backlog.size_bytes + parked.waiting_bytes
            )
            if level == "normal":
                backlog.add(now_s, delivery)
            elif level == "hard":
                if not parked.is_overloaded:
                    parked.overloaded(now_s)
                asides = (parked.park(delivery, "overloaded"),)
            else:
                parts, asides = self._put_and_shed(delivery, now_s, low)
        size = backlog.ready
        stirs = size == self._size.limit or (size < 2 and (size == 1 or not len(self)))
        if asides:
            return Put(parts, stirs, asides)
        return PUT_AND_STIRRED if stirs else PUT

    def _put_and_shed(
        self, delivery: Delivery, now_s: float, low: Low
    ) -> tuple[int, tuple[Aside, ...]]:
        """In how many parts it goes on, and what of it is of low priority."""
        asides = NOTHING
        if self._rules.keeps_dead and not self._is_due_to_ask(now_s):
            if delivery.broadcast and not delivery.subscriptions:
                # A broadcast copy: no subscription there is known to want it.
                return 1, (Aside(delivery, "dead", "shed"),)
            if shed := frozenset(low(delivery.subscriptions)):
                kept = frozenset(delivery.subscriptions) - shed
                asides = (Aside(narrowed(delivery, shed), "dead", "shed"),)
                if not kept:
                    return 1, asides
                delivery = for_nobody_else(narrowed(delivery, kept))
        self._backlog.add(now_s, delivery)
        return 1 + len(asides), asides

    def _is_due_to_ask(self, now_s: float) -> bool:
        """Has the gateway not been sent anything for so long that it may be well again? Only an
        answer says so, and what is shed gets none."""
        return not len(self) and now_s - self._sent_s >= self._rules.redrive_every_s

    def put_again(self, delivery: Delivery, now_s: float) -> bool:
        """An operator wants it delivered, outside the order; False where it isn't worth a try."""
        if not self._condition.breaker.allows(now_s):
            return False
        self._again.add(delivery)
        return True

    def renewed(self) -> None:
        """The gateway has another address: whatever was wrong, try again."""
        self._condition.renewed()
        self._size.renewed()
        self._backlog.hold_none()
        self.parked.renewed()

    def be_wary(self, wary: bool) -> None:
        """Others have given up on the gateway for now, or not any more."""
        self._condition.breaker.wary = wary

    def hurry(self, hurries: bool) -> None:
        """Nothing is to wait in memory for long, or for as long as it may."""
        self._condition.hurries = hurries

    def drop(self, ref: PartitionRef) -> list[Delivery]:
        """The partition is another lane's now, and so is all that waits of it; returns what an
        operator wanted of it, and that won't be tried."""
        self.parked.drop(ref)
        self._backlog.drop(ref)
        return self._again.drop(ref)

    def flush(self) -> None:
        """From now on send what waits at once."""
        self._flushing = True

    # --- what to do ------------------------------------------------------------------------------

    def next(self, now_s: float) -> Step:
        """What to do now, and what has waited for too long."""
        asides = self._overdue(now_s)
        step = self._next(now_s)
        return replace(step, asides=tuple(asides)) if asides else step

    def _overdue(self, now_s: float) -> Sequence[Aside]:
        backlog, asides = self._backlog, list[Aside]()
        backlog.look(now_s)
        if len(self) and not self._condition.breaker.allows(now_s):
            asides = self._park_all("unreachable")
        elif backlog.ready and now_s - backlog.since_s >= self._patience_s:
            asides = self._park_old(now_s)
        joined = self.parked.look(now_s)
        return [*asides, *joined] if joined else asides

    def _next(self, now_s: float) -> Step:
        backlog, parked, breaker = self._backlog, self.parked, self._condition.breaker
        if self._condition.retry_at_s > now_s:
            return Wait(self._condition.retry_at_s)
        if breaker.state == "open" and not (len(self) or parked.refs or self._again):
            return self._rest(now_s)
        due_s = self._due_s()
        if self._letters_next or due_s > now_s:
            step = self._letters_step(now_s)
            if step is not None:
                self._letters_next = False
                return step
        if due_s <= now_s:
            return self._send(now_s)
        due_s = min(due_s, backlog.held_until_s, parked.joining_until_s())
        return Wait(min(due_s, parked.due_s(), self._again_due_s()))

    @property
    def _patience_s(self) -> float:
        """The longest wait in memory."""
        longest_s = self._rules.buffer_timeout_s
        return min(HURRIED_S, longest_s) if self._condition.hurries else longest_s

    def _rest(self, now_s: float) -> Wait:
        """Nothing is owed to a gateway that is left alone: nothing will be sent that shows that it
        is well again, so it is taken to be after the usual time."""
        breaker = self._condition.breaker
        if breaker.allows(now_s):
            breaker.rested()
            self._condition.error = ""
            return Wait(NEVER)
        return Wait(breaker.probe_at_s)

    def upcoming(self) -> list[Delivery]:
        """What will be sent after what is in flight, if all goes well: a full batch, or nothing."""
        full = self._backlog.ready >= self._size.limit
        return (
            self._backlog.upcoming(self._size.limit, self._rules.limits.max_bytes) if full else []
        )

    def _due_s(self) -> float:
        ready = self._backlog.ready
        if not ready:
            return NEVER
        if self._flushing or self._condition.attempts or ready >= self._size.limit:
            return -NEVER
        return self._rules.limits.send_at(
            waiting=ready, first_at_s=self._backlog.since_s, last_sent_s=self._sent_s
        )

    def _letters_step(self, now_s: float) -> Redrive | SendAgain | None:
        """Parked letters and those that an operator wants take turns."""
        again_is_due, redrive_is_due = self._again_due_s() <= now_s, False
        if not (again_is_due and self._again_next):
            redrive_is_due = self.parked.due_s() <= now_s
        if redrive_is_due:
            self._again_next = True
            return self.parked.next(now_s)
        if again_is_due:
            self._again_next = False
            return self._send_again()
        return None

    def _again_due_s(self) -> float:
        return -NEVER if self._again else NEVER

    def _send_again(self) -> SendAgain:
        self._condition.breaker.attempted()
        return SendAgain(self._again.send(self.parked.most))

    def _send(self, now_s: float) -> Send:
        deliveries = self._backlog.send(self._size.limit, self._rules.limits.max_bytes)
        self._sent_s = now_s
        self._letters_next = bool(self.parked.refs or self._again)
        self._condition.breaker.attempted()
        return Send(deliveries)

    # --- what came of it -------------------------------------------------------------------------

    def answered(
        self,
        verdicts: Sequence[Verdict],
        *,
        fill: float,
        now_s: float,
        jitter: float = 1.0,
        unsent: int = 0,
    ) -> Sequence[Aside]:
        """The gateway took the batch apart. Deliveries that it wants later count as one attempt: of
        the whole batch where it took nothing, else of each partition. Those that it refuses for
        good are set aside, and so are those after their last attempt. The caller settles the
        others. So many were `unsent`, because no subscription there wants them any more: they say
        nothing of the gateway."""
        batch = self._backlog.arrived()
        self._arrived(len(batch) - unsent, fill, now_s)
        again, asides = list[Waiting](), list[Aside]()
        for at, (one, verdict) in enumerate(zip(batch, verdicts, strict=True)):
            if verdict == "retry":
                again.append(one)
            elif self._rules.is_left(one[1], verdict):
                attempts = self._condition.attempts + 1
                asides.append(Aside(one[1], "dead", "left", attempts, LEFT))
            elif verdict == "rejected":
                passed = _is_passed(one[1], batch[at + 1 :], verdicts[at + 1 :])
                asides += self._reject(one[1], "the gateway rejected it", now_s, passed=passed)
        if halted := self.parked.halted:
            for one in [one for one in again if ref_of(one[1]) in halted]:
                again.remove(one)
                asides.append(self.parked.park(one[1], "halted"))
        if len(again) < len(batch):
            self._condition.attempts = 0  # it goes forward
            self._backlog.went_forward(
                ref_of(delivery)
                for (_, delivery), verdict in zip(batch, verdicts, strict=True)
                if verdict != "retry"
            )
        if again:
            self._backlog.put_back(again)
        if again and len(again) < len(batch):
            for ref in {ref_of(delivery) for _, delivery in again}:
                asides += self._hold(ref, now_s, jitter)
        elif again:
            asides += self._another_attempt(again, WANTED_LATER, now_s, jitter)
        return asides

    def failed(self, error: str, *, now_s: float, jitter: float = 1.0) -> Failed:
        """The batch didn't arrive, or nobody knows whether it did. The next one is half as large:
        it may take too long as it is. Letters pause, unless fewer of them went through just
        before."""
        batch, given_up = self._backlog.arrived(), self._again.arrived()
        self._condition.error = error
        self._condition.breaker.failed(now_s)
        were_too_many = False
        if batch:
            self._size.failed(len(batch), now_s=now_s)
            self._backlog.put_back(batch)
            asides = self._another_attempt(batch, error, now_s, jitter)
            if asides:
                self.parked.send_fewer(len(batch), now_s=now_s)
        else:
            asides = self.parked.park_all_joining()
            were_too_many = self.parked.failed(len(given_up), now_s=now_s)
        if not were_too_many:
            self.parked.pause(now_s)
        if not self._condition.breaker.allows(now_s):
            given_up += self._again.give_up()
        return Failed(given_up, tuple(asides))

    def refused(self, error: str, *, now_s: float) -> Sequence[Aside]:
        """The gateway will never take this batch: send smaller ones, until one delivery is left
        that is to blame."""
        batch = self._backlog.arrived()
        self._condition.well(self._condition.pressure.fill)
        self._size.failed(len(batch), now_s=now_s)
        self._condition.attempts = 0
        if len(batch) == 1:
            return self._reject(batch[0][1], error, now_s)
        self._backlog.put_back(batch)
        return ()

    def unwritten(self, refs: Iterable[PartitionRef]) -> Sequence[Aside]:
        """The batch wasn't sent: of these partitions something older is dead, and the letter can't
        be written at the moment. They are parked behind it."""
        self._condition.breaker.not_tried()
        self._backlog.put_back(self._backlog.arrived())
        return self._park_partitions(set(refs), UNWRITTEN, "overloaded")

    def sent_again(self, *, fill: float, now_s: float) -> None:
        """What an operator wanted was answered."""
        self._condition.well(fill)
        self.parked.again_fitted(len(self._again.arrived()), now_s=now_s)

    def again_refused(self, *, now_s: float) -> list[Delivery]:
        """The gateway won't take these redeliveries at once. Returns the one to blame, if the batch
        was a single one; otherwise none, and they are sent in smaller batches."""
        batch = self._again.arrived()
        self._condition.well(self._condition.pressure.fill)
        self.parked.send_fewer(len(batch), now_s=now_s)
        if len(batch) == 1:
            return batch
        self._again.put_back(batch)
        return []

    # --- parts -----------------------------------------------------------------------------------

    def _arrived(self, sent: int, fill: float, now_s: float) -> None:
        condition = self._condition
        if sent:
            condition.well(fill)
            self._size.fitted(sent, full=sent >= self._size.limit, now_s=now_s)
            return
        condition.breaker.not_tried()
        if condition.breaker.state == "closed":
            condition.error = ""

    def _another_attempt(
        self, batch: Sequence[Waiting], error: str, now_s: float, jitter: float
    ) -> list[Aside]:
        """After the last attempt the batch's partitions are parked."""
        condition, rules = self._condition, self._rules
        condition.attempts += 1
        if condition.attempts >= rules.max_attempts:
            asides = self._park_partitions({ref_of(delivery) for _, delivery in batch}, error)
            condition.begins_anew()
            pause_s = LOOK_AGAIN_S if error == WANTED_LATER else rules.redrive_every_s
            self.parked.pause_anew(pause_s, now_s)
            return asides
        delay_s = rules.backoff.delay_s(condition.attempts - 1, jitter=jitter)
        condition.retry_at_s = now_s + delay_s
        return []

    def _hold(self, ref: PartitionRef, now_s: float, jitter: float) -> list[Aside]:
        """The partition waits by itself; its letters do where that was too often."""
        attempts = self._backlog.held_so_often(ref) + 1
        if attempts >= self._rules.max_attempts:
            asides = self._park_partitions({ref}, WANTED_LATER, attempts=attempts)
            self.parked.rest(ref, now_s)
            return asides
        self._backlog.hold(ref, now_s=now_s, jitter=jitter)
        return []

    def _reject(
        self, delivery: Delivery, error: str, now_s: float, *, passed: bool = False
    ) -> list[Aside]:
        """It is refused for good. `passed`: the gateway took something newer of the partition in
        the same breath, so that it would take this for a repeat unless it is marked."""
        if self._rules.keeps_dead:
            attempts = self._condition.attempts + 1
            return [Aside(delivery, "dead", "rejected", attempts, error)]
        ref = ref_of(delivery)
        if passed:
            delivery = marked(delivery)
        return [
            *self._park_partitions({ref}, error, "halted"),
            self.parked.park(delivery, "rejected", error),
            *self.parked.refused(ref, delivery.seq, error, now_s),
        ]

    def _park_old(self, now_s: float) -> list[Aside]:
        """The partitions of which something waits for too long."""
        asides = self._park_partitions(self._backlog.old(now_s - self._patience_s), "", "too_old")
        self._condition.begins_anew()
        return asides

    def _park_all(self, reason: LetterReason) -> list[Aside]:
        asides = self.parked.park_all_joining()
        asides += [self.parked.park(delivery, reason) for delivery in self._backlog.take_all()]
        self._condition.begins_anew()
        return asides

    def _park_partitions(
        self,
        refs: set[PartitionRef],
        error: str,
        reason: LetterReason = "unreachable",
        attempts: int = 0,
    ) -> list[Aside]:
        return [
            self.parked.park(delivery, reason, error, attempts)
            for delivery in self._backlog.take(refs)
        ]


def _is_passed(delivery: Delivery, behind: Sequence[Waiting], verdicts: Sequence[Verdict]) -> bool:
    """Did the gateway take something newer of its partition?"""
    return any(
        verdict in SETTLING_VERDICTS and ref_of(one) == ref_of(delivery)
        for (_, one), verdict in zip(behind, verdicts, strict=True)
    )
