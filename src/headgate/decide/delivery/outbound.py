"""What one lane owes one gateway, and what to do about it next. No I/O; time is an argument.

Deliveries go out in the order they came, one batch at a time. A batch that fails for the moment is
sent again, and holds what is behind it; where the gateway wants only some of it later, their
partitions wait by themselves (held.py), and the others go on. What can't be sent is set aside, to
be parked (the gateway doesn't answer, is too far behind, or kept it waiting for too long) or as a
dead letter (it is refused for good, or of low priority while the gateway is behind). From then on
everything newer of that partition is set aside too, until the parked letters are through: `behind`
names those partitions. They take turns when letters are sent, so none waits for a busier one. What
is newer than the last letters of one waits in memory (joining.py), or there would always be more.

Where no dead letters are kept, a record that is refused for good is parked instead, and its
partition halts: its letters are sent one at a time, so that nothing passes the one that is refused,
which is tried again after every pause.

Beside the order stand deliveries that an operator wants again: each is tried once, when it is their
turn, and whoever asked for it hears what came of it.

Invariants: a delivery that was put leaves in exactly one way per part: with a verdict, aside, or
because its partition was dropped. Per partition nothing is sent while something older is parked or
waits. The order of what is set aside is not the order of what was put: whoever sends letters sorts
them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice

from headgate.decide.batching import BatchLimits
from headgate.decide.delivery.batch_size import BatchSize
from headgate.decide.delivery.behind import Behind, Page
from headgate.decide.delivery.breaker import NEVER, Breaker
from headgate.decide.delivery.held import Held, Waiting
from headgate.decide.delivery.joining import Joining
from headgate.decide.delivery.pacing import Pacing
from headgate.decide.delivery.parts import for_nobody_else, narrowed
from headgate.decide.delivery.pressure import Pressure, Watermarks
from headgate.decide.delivery.steps import Aside, Put, Redrive, Send, SendAgain, Step, Wait
from headgate.decide.redelivered import marked
from headgate.decide.retrying import Backoff
from headgate.model.delivery import SETTLING_VERDICTS, Delivery, Verdict
from headgate.model.event import PartitionRef
from headgate.model.letters import LetterReason

LOOK_AGAIN_S = 1.0
"""Pause after letters couldn't be read, or were not to be sent yet."""
HURRIED_S = 1.0
"""The longest wait in memory where nothing is to wait for long."""
WANTED_LATER = "the gateway wants it later"
UNWRITTEN = "a dead letter of something older can't be written"
LEFT = "whoever it was to come to again has left; retry it for those who are there now"


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """`redrive_every_s` is the pause before parked letters are tried again after a failure."""

    limits: BatchLimits = field(default_factory=BatchLimits)
    backoff: Backoff = field(default_factory=Backoff)
    max_attempts: int = 3
    buffer_timeout_s: float = 60.0
    redrive_every_s: float = 10.0
    watermarks: Watermarks = field(default_factory=Watermarks)
    breaker_threshold: int = 5
    breaker_timeout_s: float = 30.0
    keeps_dead: bool = True
    """Whether there are dead letters. If not, nothing is shed, and what is refused for good halts
    its partition."""


Low = Callable[[Sequence[str]], Sequence[str]]
"""Picks the subscriptions that are of low priority."""

PUT, PUT_AND_STIRRED = Put(), Put(stirs=True)


class Outbound:
    """`behind`: the partitions that have parked letters for this gateway when it begins."""

    def __init__(self, rules: DeliveryRules, behind: Iterable[PartitionRef] = ()) -> None:
        self._rules = rules
        self._waiting: deque[Waiting] = deque()
        self._held = Held(rules.backoff)
        self._joining = Joining()
        self._pacing = Pacing()
        self._waiting_of: Counter[PartitionRef] | None = None
        """How much waits of each partition, held or not; counted once somebody asks, until nothing
        waits that isn't held."""
        self._in_flight: list[Waiting] = []
        self._asides: list[Aside] = []
        self._attempts = 0
        self._retry_at_s = -NEVER
        self._redrive_at_s = -NEVER
        self._sent_s = -NEVER
        self._size = BatchSize(rules.limits.max_size)
        self._letters_size = BatchSize(rules.limits.max_size)
        """Letters may well be larger than what comes now: what becomes of the one is no sign for
        the other."""
        self._looking_for = 0
        """How many letters were asked for last."""
        self._redriving = 0
        """How many letters were sent last."""
        self._redriving_full = False
        """Whether there are more of them, which the size of the batch kept back."""
        self._letters_next = False
        self._again_next = False
        self._is_overloaded = False
        self._flushing = False
        self._again: deque[Delivery] = deque()
        """What an operator wants, and nobody has tried yet."""
        self._again_in_flight: list[Delivery] = []
        self._letters = Behind(behind)
        self.breaker = Breaker(rules.breaker_threshold, rules.breaker_timeout_s)
        self.pressure = Pressure(rules.watermarks)
        self.hurries = False
        """Is nothing to wait for long, because the lane remembers all that comes behind it?"""
        self.is_redriving = False
        """Are letters looked for or sent? Then no others are, until that is over."""
        self.error = ""

    def __len__(self) -> int:
        """What waits in memory, on its way included."""
        return len(self._waiting) + len(self._in_flight) + self._held.size + self._joining.size

    @property
    def behind(self) -> AbstractSet[PartitionRef]:
        """The partitions that have parked letters."""
        return self._letters.refs

    @property
    def halted(self) -> Mapping[PartitionRef, str]:
        """Those that stand still at a letter which is refused, and why."""
        return self._letters.halted

    @property
    def attempts(self) -> int:
        """How often what is sent next has failed already."""
        return self._attempts

    @property
    def struggles(self) -> bool:
        """Is something wrong with the gateway right now?"""
        return self._attempts > 0 or self.breaker.state != "closed"

    # --- what comes in ---------------------------------------------------------------------------

    def put(self, delivery: Delivery, now_s: float, low: Low) -> Put:
        """Takes in what is to be delivered. `low` is asked only while the gateway is behind."""
        parts = self._put(delivery, now_s, low)
        size = len(self._waiting)
        stirs = size == 1 or size == self._size.limit or not len(self)
        if self._asides:
            return Put(parts, stirs, self._told_asides())
        return PUT_AND_STIRRED if stirs else PUT

    def _put(self, delivery: Delivery, now_s: float, low: Low) -> int:
        """In how many parts it goes on."""
        if self.behind and (ref := _ref(delivery)) in self.behind:
            if ref in self._joining:
                if not self.struggles and self.pressure.weigh(len(self)) == "normal":
                    self._joining.add(ref, (now_s, delivery))
                    return 1
                self._park_joining([ref])
            waits_for: LetterReason = "halted" if ref in self.halted else "overloaded"
            self._park(delivery, "unreachable" if self.struggles else waits_for)
            return 1
        if not self.breaker.allows(now_s):
            self._park(delivery, "unreachable")
            return 1
        parts = 1
        level = self.pressure.weigh(
            len(self._waiting) + len(self._in_flight) + self._held.size + self._joining.size
        )
        if level != "normal":
            if level == "hard":
                if not self._is_overloaded:
                    self._overloaded(now_s)
                self._park(delivery, "overloaded")
                return 1
            sheds = self._rules.keeps_dead and not self._is_due_to_ask(now_s)
            if sheds and delivery.broadcast and not delivery.subscriptions:
                # A copy for whom it may concern: nobody there is known to want it.
                self._asides.append(Aside(delivery, "dead", "shed"))
                return 1
            if sheds and (shed := frozenset(low(delivery.subscriptions))):
                kept = frozenset(delivery.subscriptions) - shed
                self._asides.append(Aside(narrowed(delivery, shed), "dead", "shed"))
                if not kept:
                    return 1
                delivery = for_nobody_else(narrowed(delivery, kept))
                parts = 2
        if self._held.size and (ref := _ref(delivery)) in self._held:
            self._held.add(ref, (now_s, delivery))
        else:
            self._waiting.append((now_s, delivery))
        if self._waiting_of is not None:
            self._waiting_of[_ref(delivery)] += 1
        return parts

    def _is_due_to_ask(self, now_s: float) -> bool:
        """Has the gateway not been sent anything for so long that it may be well again? Only an
        answer says so, and what is shed gets none."""
        return not len(self) and now_s - self._sent_s >= self._rules.redrive_every_s

    def put_again(self, delivery: Delivery, now_s: float) -> bool:
        """An operator wants it delivered, outside the order; False where it isn't worth a try."""
        if not self.breaker.allows(now_s):
            return False
        self._again.append(delivery)
        return True

    def fall_behind(self, ref: PartitionRef) -> None:
        """Everything of `ref` is set aside from now on, until somebody has looked for its letters
        and for those that come before them, and found none."""
        self._park_joining([ref])
        self._letters.park(ref)

    def renewed(self) -> None:
        """The gateway has another address: whatever was wrong, try again."""
        self.breaker.renewed()
        self.pressure.filled(0.0)
        self._attempts, self.error = 0, ""
        self._retry_at_s = self._redrive_at_s = -NEVER
        self._size.renewed()
        self._letters_size.renewed()
        self._waiting.extendleft(reversed(self._held.take_all()))
        self._letters.wake()

    def drop(self, ref: PartitionRef) -> list[Delivery]:
        """The partition is somebody else's now, and so is all that waits of it; returns what an
        operator wanted of it, and that won't be tried."""
        self._letters.forget(ref)
        self._pacing.forget(ref)
        self._joining.take(ref)
        waiting_of = self._counted()
        self._held.take(ref)
        if waiting_of[ref]:
            self._waiting = deque(one for one in self._waiting if _ref(one[1]) != ref)
            del waiting_of[ref]
        dropped = [one for one in self._again if _ref(one) == ref]
        self._again = deque(one for one in self._again if _ref(one) != ref)
        return dropped

    def flush(self) -> None:
        """From now on send what waits at once."""
        self._flushing = True

    # --- what to do ------------------------------------------------------------------------------

    def next(self, now_s: float) -> Step:
        """What to do now; with it comes what was set aside since the last step or put."""
        step = self._next(now_s)
        return replace(step, asides=self._told_asides()) if self._asides else step

    def _told_asides(self) -> tuple[Aside, ...]:
        asides, self._asides = tuple(self._asides), []
        return asides

    def _next(self, now_s: float) -> Step:
        if self._held.size:
            self._waiting.extendleft(reversed(self._held.take_due(now_s)))
        if len(self) and not self.breaker.allows(now_s):
            self._park_all("unreachable")
        elif self._waiting and now_s - self._waiting[0][0] >= self._patience_s:
            self._park_old(now_s)
        if self._joining.due_s <= now_s:
            self._park_joining(self._joining.overdue(now_s))
        if self._is_overloaded and self.pressure.weigh(len(self)) != "hard":
            self._is_overloaded, self._redrive_at_s = False, -NEVER
        if self._retry_at_s > now_s:
            return Wait(self._retry_at_s)
        if self.breaker.state == "open" and not (len(self) or self.behind or self._again):
            return self._rest(now_s)
        due_s = self._due_s()
        if self._letters_next or due_s > now_s:
            step = self._letters_step(now_s)
            if step is not None:
                self._letters_next = False
                return step
        if due_s <= now_s:
            return self._send(now_s)
        due_s = min(due_s, self._held.due_s, self._joining.due_s)
        return Wait(min(due_s, self._redrive_due_s(), self._again_due_s()))

    @property
    def _patience_s(self) -> float:
        """The longest wait in memory."""
        longest_s = self._rules.buffer_timeout_s
        return min(HURRIED_S, longest_s) if self.hurries else longest_s

    def _rest(self, now_s: float) -> Wait:
        """Nothing is owed to a gateway that is left alone: nothing will be sent that shows that it
        is well again, so it is taken to be after the usual time."""
        if self.breaker.allows(now_s):
            self.breaker.rested()
            self.error = ""
            return Wait(NEVER)
        return Wait(self.breaker.probe_at_s)

    def upcoming(self) -> list[Delivery]:
        """What will be sent after what is in flight, if all goes well: a full batch, or nothing."""
        if len(self._waiting) < self._size.limit:
            return []
        return [delivery for _, delivery in islice(self._waiting, self._size.limit)]

    def _due_s(self) -> float:
        waiting = self._waiting
        if not waiting:
            return NEVER
        if self._flushing or self._attempts or len(waiting) >= self._size.limit:
            return -NEVER
        return self._rules.limits.send_at(
            waiting=len(waiting), first_at_s=waiting[0][0], last_sent_s=self._sent_s
        )

    # --- letters ---------------------------------------------------------------------------------

    def _letters_step(self, now_s: float) -> Redrive | SendAgain | None:
        """Parked ones and those that an operator wants take turns."""
        again_is_due, redrive_is_due = self._again_due_s() <= now_s, False
        if not (again_is_due and self._again_next):
            redrive_is_due = self._redrive_due_s() <= now_s
        if redrive_is_due:
            self._again_next = True
            step = self._letters.next(now_s, self._counted(), limit=self._letters_size.limit)
            self._looking_for = len(step.refs) * step.each
            return step
        if again_is_due:
            self._again_next = False
            return self._send_again()
        return None

    def _again_due_s(self) -> float:
        return -NEVER if self._again else NEVER

    def _redrive_due_s(self) -> float:
        if self.is_redriving or not self.behind:
            return NEVER
        may_s = max(self._redrive_at_s, self.breaker.probe_at_s)
        return self._letters.due_s(may_s, self._counted())

    def _counted(self) -> Counter[PartitionRef]:
        if self._waiting_of is None:
            self._waiting_of = Counter([_ref(delivery) for _, delivery in self._waiting])
            self._waiting_of.update(map(_ref, self._held))
        return self._waiting_of

    def _send_again(self) -> SendAgain:
        size = min(len(self._again), self._letters_size.limit)
        self._again_in_flight = [self._again.popleft() for _ in range(size)]
        self.breaker.attempted()
        return SendAgain(list(self._again_in_flight))

    def _send(self, now_s: float) -> Send:
        size = min(len(self._waiting), self._size.limit)
        self._in_flight = [self._waiting.popleft() for _ in range(size)]
        if not self._waiting:
            self._waiting_of = None
        elif self._waiting_of is not None:
            self._waiting_of.subtract([_ref(delivery) for _, delivery in self._in_flight])
        self._sent_s = now_s
        self._letters_next = bool(self.behind or self._again)
        self.breaker.attempted()
        return Send([delivery for _, delivery in self._in_flight])

    # --- what came of it -------------------------------------------------------------------------

    def answered(
        self,
        verdicts: Sequence[Verdict],
        *,
        fill: float,
        now_s: float,
        jitter: float = 1.0,
        unsent: int = 0,
    ) -> None:
        """The gateway took the batch apart. What it wants later is one attempt: of the whole batch
        where it took nothing, else of each partition. What it refuses for good is set aside. The
        caller settles the others. So many were `unsent`, because nobody there wants them any more:
        they say nothing of the gateway."""
        batch, self._in_flight = self._in_flight, []
        self._arrived(len(batch) - unsent, fill, now_s)
        again = []
        for at, (one, verdict) in enumerate(zip(batch, verdicts, strict=True)):
            if verdict == "retry":
                again.append(one)
            elif self.is_left(one[1], verdict):
                self._asides.append(Aside(one[1], "dead", "left", self._attempts + 1, LEFT))
            elif verdict == "rejected":
                passed = self._is_passed(one[1], batch[at + 1 :], verdicts[at + 1 :])
                self._reject(one[1], "the gateway rejected it", now_s, passed=passed)
        if self.halted:
            for one in [one for one in again if _ref(one[1]) in self.halted]:
                again.remove(one)
                self._park(one[1], "halted")
        if len(again) < len(batch):
            self._attempts = 0  # it goes forward
            if self._held.counts:
                for one, verdict in zip(batch, verdicts, strict=True):
                    if verdict != "retry":
                        self._held.went_forward(_ref(one[1]))
        if again:
            self._put_back(again)
        if again and len(again) < len(batch):
            for ref in {_ref(delivery) for _, delivery in again}:
                self._hold(ref, now_s, jitter)
        elif again:
            self._another_attempt([d for _, d in again], WANTED_LATER, now_s, jitter)

    def is_left(self, delivery: Delivery, verdict: Verdict) -> bool:
        """Whether it came again for somebody who has left since: who comes back reads on from a
        position, which doesn't bring it, so it becomes a dead letter."""
        is_for_somebody = delivery.redelivery and bool(delivery.subscriptions)
        return verdict == "no_subscriber" and is_for_somebody and self._rules.keeps_dead

    def failed(self, error: str, *, now_s: float, jitter: float = 1.0) -> list[Delivery]:
        """The batch didn't arrive, or nobody knows whether it did; returns what an operator wanted,
        and that isn't tried any more. The next one is half as large: it may take too long as it
        is. Letters pause, unless fewer of them went through just before."""
        batch, self._in_flight = self._in_flight, []
        given_up, self._again_in_flight = self._again_in_flight, []
        self.error = error
        self.breaker.failed(now_s)
        were_too_many = False
        if batch:
            self._size.failed(len(batch), now_s=now_s)
            self._put_back(batch)
            if self._another_attempt([delivery for _, delivery in batch], error, now_s, jitter):
                self._letters_size.failed(len(batch), now_s=now_s)
        else:
            self._park_joining(self._joining.refs())
            count = len(given_up) or self._redriving
            were_too_many = self._letters_size.failed(count, now_s=now_s)
        if self._redrive_at_s <= now_s and not were_too_many:
            # Not again and again, or a gateway that fails now and then gets no letters at all.
            self._redrive_at_s = now_s + self._rules.redrive_every_s
        if not self.breaker.allows(now_s):
            given_up += self._again
            self._again.clear()
        return given_up

    def refused(self, error: str, *, now_s: float) -> None:
        """The gateway will never take this batch: send smaller ones, until one delivery is left
        that is to blame."""
        batch, self._in_flight = self._in_flight, []
        self._well(self.pressure.fill)
        self._size.failed(len(batch), now_s=now_s)
        self._attempts = 0
        if len(batch) == 1:
            self._reject(batch[0][1], error, now_s)
            return
        self._put_back(batch)

    def unwritten(self, refs: Iterable[PartitionRef]) -> None:
        """The batch wasn't sent: of these partitions something older is dead, and the letter can't
        be written at the moment. They are parked behind it."""
        batch, self._in_flight = self._in_flight, []
        self.breaker.not_tried()
        self._put_back(batch)
        self._park_partitions(set(refs), UNWRITTEN, "overloaded")

    def may_redrive(self, now_s: float) -> bool:
        """Are the letters that were looked for still to be sent, after all that has happened since?
        If not, the same partitions have the next turn."""
        may = now_s >= max(self._redrive_at_s, self._retry_at_s, self.breaker.probe_at_s)
        if not may:
            self._letters.again()
        return may

    def redriving(self, count: int, *, full: bool = True) -> None:
        """So many letters are about to be sent; `full` where some partition has more of them than
        it may send."""
        self._redriving, self._redriving_full = count, full
        self.breaker.attempted()

    def redriven(
        self,
        *,
        fill: float,
        later: Collection[PartitionRef] = (),
        through: Iterable[PartitionRef] = (),
        pages: Mapping[PartitionRef, Page | None] | None = None,
        now_s: float,
    ) -> None:
        """Letters were sent and answered; of some partitions all went `through`, of others
        something is wanted `later` and nothing went forward, so they rest. Those that have a page
        may go on behind it, whatever became of that."""
        self._well(fill)
        self._letters_size.fitted(self._redriving, full=self._redriving_full, now_s=now_s)
        for ref in through:
            self._letters.go_on(ref)
        longest_s = self._rules.redrive_every_s
        self._park_joining(later)
        for ref, page in (pages or {}).items():
            if page is not None and not page.whole:
                self._park_joining([ref])
            self._letters.page(ref, page, now_s=now_s, longest_s=longest_s)
        if self.pressure.weigh(len(self)) == "hard":
            self._overloaded(now_s)
            return
        self._redrive_at_s = -NEVER
        for ref in later:
            self._letters.rest(ref, now_s + self._rules.redrive_every_s)

    def redrive_refused(self, count: int, *, now_s: float) -> bool:
        """The gateway won't take `count` letters at once; True when the only one is to blame. The
        same partitions have the next turn, with fewer letters."""
        self._well(self.pressure.fill)
        self._letters_size.failed(count, now_s=now_s)
        self._letters.again()
        return count == 1

    def found_halted(self, ref: PartitionRef, seq: int, error: str) -> None:
        """A former lane left the partition standing still at this letter."""
        if not self._rules.keeps_dead:
            self._letters.halt(ref, seq, error)

    def letter_rejected(self, ref: PartitionRef, seq: int, error: str, *, now_s: float) -> bool:
        """A parked letter is refused for good: True when it is to be dead; else it stays where it
        is, and its partition with it."""
        if self._rules.keeps_dead:
            return True
        self._halt(ref, seq, error, now_s)
        return False

    def drained(self, refs: Collection[PartitionRef]) -> None:
        """There are no parked letters of these any more: what comes is sent again, and what has
        waited for that goes first."""
        self._letters.drained(refs)
        for ref in refs:
            if ref not in self.behind:
                self._pacing.forget(ref)
                self._put_back(self._joining.take(ref))

    def nearly_drained(self, refs: Iterable[PartitionRef], *, now_s: float) -> None:
        """There are few parked letters of these, and nothing speaks against sending them: what
        comes waits for them in memory."""
        for ref in refs:
            is_stuck = self.struggles or self.hurries or ref in self.halted
            if ref in self.behind and not is_stuck:
                self._joining.begin(ref, now_s)

    def removed(self, counts: Mapping[PartitionRef, int]) -> None:
        """So many letters of these have left the store."""
        self._pacing.removed(counts)

    def outruns_letters(self, ref: PartitionRef, now_s: float) -> bool:
        """Is more parked of `ref` than sent, although its letters are on their way?"""
        if not self._pacing.is_ahead(ref) or self.struggles or self._is_overloaded:
            return False
        return now_s >= self._redrive_at_s and self._letters.is_moving(ref, now_s)

    def pages_empty(self, refs: Iterable[PartitionRef], *, now_s: float) -> None:
        """There are parked letters of these, but none where they were looked for."""
        for ref in refs:
            self._letters.page_empty(ref, now_s=now_s, longest_s=self._rules.redrive_every_s)

    def held(self, refs: Mapping[PartitionRef, bool], *, now_s: float) -> None:
        """The letters of these have to wait for parked ones of other partitions, which are on their
        way or not."""
        self._park_joining(refs)
        until_s = now_s + min(LOOK_AGAIN_S, self._rules.redrive_every_s)
        for ref, moving in refs.items():
            self._letters.hold(ref, until_s, moving=moving)

    def unread(self, refs: Iterable[PartitionRef], *, now_s: float) -> None:
        """The letters of these have to wait for what is older and still to be put."""
        for ref in refs:
            self._letters.rest(ref, now_s + min(LOOK_AGAIN_S, self._rules.redrive_every_s))

    def sent_again(self, *, fill: float, now_s: float) -> None:
        """What an operator wanted was answered."""
        batch, self._again_in_flight = self._again_in_flight, []
        self._well(fill)
        full = len(batch) >= self._letters_size.limit
        self._letters_size.fitted(len(batch), full=full, now_s=now_s)

    def again_refused(self, *, now_s: float) -> list[Delivery]:
        """The gateway won't take them at once: those to blame for it, the only one or nobody; the
        others are sent in smaller batches."""
        batch, self._again_in_flight = self._again_in_flight, []
        self._well(self.pressure.fill)
        self._letters_size.failed(len(batch), now_s=now_s)
        if len(batch) == 1:
            return batch
        self._again.extendleft(reversed(batch))
        return []

    def postponed(self, now_s: float) -> None:
        """The letters can't be looked for at the moment."""
        self._redrive_at_s = now_s + min(LOOK_AGAIN_S, self._rules.redrive_every_s)

    def store_failed(self, now_s: float) -> None:
        """The letters couldn't be read, or changed after they were sent. Fewer are asked for the
        next time: it may take too long as it is."""
        self._letters_size.failed(self._looking_for, now_s=now_s)
        self.postponed(now_s)

    # --- parts -----------------------------------------------------------------------------------

    def _well(self, fill: float) -> None:
        self.breaker.succeeded()
        self.pressure.filled(fill)
        self.error = ""

    def _arrived(self, sent: int, fill: float, now_s: float) -> None:
        if sent:
            self._well(fill)
            self._size.fitted(sent, full=sent >= self._size.limit, now_s=now_s)
            return
        self.breaker.not_tried()
        if self.breaker.state == "closed":
            self.error = ""

    def _overloaded(self, now_s: float) -> None:
        """Letters wait until the gateway has got over it, or might have said so."""
        self._is_overloaded = True
        self._redrive_at_s = now_s + self._rules.redrive_every_s

    def _another_attempt(
        self, batch: list[Delivery], error: str, now_s: float, jitter: float
    ) -> bool:
        """True when it was the last one: they are parked."""
        self._attempts += 1
        rules = self._rules
        if self._attempts >= rules.max_attempts:
            self._park_partitions({_ref(delivery) for delivery in batch}, error)
            self._attempts = 0
            self._retry_at_s = -NEVER
            pause_s = LOOK_AGAIN_S if error == WANTED_LATER else rules.redrive_every_s
            self._redrive_at_s = now_s + min(pause_s, rules.redrive_every_s)
            return True
        self._retry_at_s = now_s + rules.backoff.delay_s(self._attempts - 1, jitter=jitter)
        return False

    def _hold(self, ref: PartitionRef, now_s: float, jitter: float) -> None:
        """The partition waits by itself; its letters do where that was too often."""
        attempts = self._held.attempts(ref) + 1
        if attempts >= self._rules.max_attempts:
            self._park_partitions({ref}, WANTED_LATER, attempts=attempts)
            pause_s = min(LOOK_AGAIN_S, self._rules.redrive_every_s)
            self._letters.rest(ref, now_s + pause_s)
            return
        items = [one for one in self._waiting if _ref(one[1]) == ref]
        self._waiting = deque(one for one in self._waiting if _ref(one[1]) != ref)
        self._held.hold(ref, items, now_s=now_s, jitter=jitter)

    def _put_back(self, batch: Sequence[tuple[float, Delivery]]) -> None:
        self._waiting.extendleft(reversed(batch))
        if self._waiting_of is not None:
            self._waiting_of.update([_ref(delivery) for _, delivery in batch])

    def _park(
        self, delivery: Delivery, reason: LetterReason, error: str = "", attempts: int = 0
    ) -> None:
        ref = _ref(delivery)
        self._letters.park(ref)
        self._pacing.parked(ref)
        attempts, error = attempts or self._attempts, error or self.error
        self._asides.append(Aside(delivery, "parked", reason, attempts, error))

    def _reject(
        self, delivery: Delivery, error: str, now_s: float, *, passed: bool = False
    ) -> None:
        """It is refused for good. `passed`: the gateway took something newer of the partition in
        the same breath, so that it would take this for a repeat unless it is marked."""
        if self._rules.keeps_dead:
            self._asides.append(Aside(delivery, "dead", "rejected", self._attempts + 1, error))
            return
        ref = _ref(delivery)
        if passed:
            delivery = marked(delivery)
        self._park_partitions({ref}, error, "halted")
        self._park(delivery, "rejected", error)
        self._halt(ref, delivery.seq, error, now_s)

    def _halt(self, ref: PartitionRef, seq: int, error: str, now_s: float) -> None:
        self._park_joining([ref])
        self._letters.halt(ref, seq, error)
        self._letters.rest(ref, now_s + self._rules.redrive_every_s)

    def _is_passed(
        self, delivery: Delivery, behind: list[tuple[float, Delivery]], verdicts: Sequence[Verdict]
    ) -> bool:
        return any(
            verdict in SETTLING_VERDICTS and _ref(one) == _ref(delivery)
            for (_, one), verdict in zip(behind, verdicts, strict=True)
        )

    def _park_old(self, now_s: float) -> None:
        """The partitions of which something waits for too long."""
        since_s = now_s - self._patience_s
        refs = {_ref(delivery) for at_s, delivery in self._waiting if at_s <= since_s}
        self._park_partitions(refs, "", "too_old")
        self._attempts = 0
        self._retry_at_s = -NEVER

    def _park_joining(self, refs: Iterable[PartitionRef]) -> None:
        """What waits in memory behind the letters of these is parked behind them after all."""
        for ref in refs:
            for _, delivery in self._joining.take(ref):
                self._park(delivery, "unreachable" if self.struggles else "overloaded")

    def _park_all(self, reason: LetterReason) -> None:
        self._park_joining(self._joining.refs())
        waiting = [*self._held.take_all(), *self._waiting]
        self._waiting, self._waiting_of = deque(), None
        for _, delivery in waiting:
            self._park(delivery, reason)
        self._attempts = 0
        self._retry_at_s = -NEVER

    def _park_partitions(
        self,
        refs: set[PartitionRef],
        error: str,
        reason: LetterReason = "unreachable",
        attempts: int = 0,
    ) -> None:
        waiting, self._waiting, self._waiting_of = self._waiting, deque(), None
        leaving = [delivery for ref in refs for _, delivery in self._held.take(ref)]
        for one in waiting:
            if _ref(one[1]) in refs:
                leaving.append(one[1])
            else:
                self._waiting.append(one)
        for delivery in leaving:
            self._park(delivery, reason, error, attempts)


def _ref(delivery: Delivery) -> PartitionRef:
    return PartitionRef(delivery.topic, delivery.partition)
