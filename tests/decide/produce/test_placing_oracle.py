"""The opportunistic machine against a disk that does its worst, and a naive copy of the rule.

The disk knows what is really written. Whatever the order of events: nothing is written twice,
nothing is acknowledged without a write, "nothing was written" is true, everybody is answered once
and by the deadline, and a request goes where counting by hand says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.decide.produce.partition_health import HealthRules
from headgate.decide.produce.placing import Answer, Append, Effect, Placing, PlacingRules, ReadBack

WRITE_TIMEOUT_S = 3.0
NEVER_DEGRADED = HealthRules(degraded_above_s=1e9)


@dataclass
class Aside:
    """What is known by hand about one partition."""

    failures: int = 0
    since_s: float = -1.0
    until_s: float = -1.0


@dataclass
class Truth:
    """What is really the case with one request."""

    size: int
    deadline_s: float
    written_in: list[int] = field(default_factory=list)
    answer: Answer | None = None


class PlacingAgainstOracle(RuleBasedStateMachine):
    @initialize(backlog=st.lists(st.integers(0, 20), min_size=1, max_size=4))
    def begin(self, backlog: list[int]) -> None:
        self.now_s = 0.0
        self.machine = Placing(PlacingRules(WRITE_TIMEOUT_S, NEVER_DEGRADED))
        self.backlog = dict(enumerate(backlog))
        self.aside = {number: Aside() for number in self.backlog}
        self.truth: dict[int, Truth] = {}
        self.appends: dict[Append, float] = {}
        self.overdue: set[Append] = set()
        self.reads: list[ReadBack] = []
        self.stopped = False
        self.run(self.machine.observe(0.0, self.backlog))

    # --- the naive copy --------------------------------------------------------------------------

    def under_way(self, partition: int) -> list[Append]:
        return [append for append in self.appends if append.partition == partition]

    def by_hand(self) -> int | None:
        usable = [
            number
            for number, aside in self.aside.items()
            if aside.failures == 0 or (self.now_s >= aside.until_s and not self.under_way(number))
        ]
        waiting = {
            number: self.backlog[number]
            + sum(self.truth[append.request].size for append in self.under_way(number))
            for number in usable
        }
        return min(waiting, key=lambda number: (waiting[number], number)) if waiting else None

    def note_failure(self, partition: int) -> None:
        aside = self.aside[partition]
        if aside.failures and self.now_s < aside.until_s:
            return
        aside.failures += 1
        aside.since_s = self.now_s
        aside.until_s = self.now_s + min(0.5 * 1.5 ** (aside.failures - 1), 5.0)

    # --- effects ---------------------------------------------------------------------------------

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            truth = self.truth[effect.request]
            match effect:
                case Append():
                    assert truth.answer is None
                    assert truth.written_in == [], "it would be there twice"
                    mine = [one for one in self.appends if one.request == effect.request]
                    assert not mine, "an earlier append may still be written"
                    assert effect.partition == self.by_hand()
                    self.appends[effect] = self.now_s
                case ReadBack():
                    assert truth.answer is None
                    self.reads.append(effect)
                case Answer():
                    self.check_answer(effect, truth)
                    truth.answer = effect

    def check_answer(self, answer: Answer, truth: Truth) -> None:
        assert truth.answer is None, "answered twice"
        pending = [one for one in self.appends if one.request == answer.request]
        match answer.verdict:
            case "written":
                assert len(truth.written_in) == 1
            case "unknown":
                assert answer.partition is not None
                # It names the one place where it may be.
                assert set(truth.written_in) <= {answer.partition}
                assert {one.partition for one in pending} <= {answer.partition}
            case _:
                assert truth.written_in == []
                assert pending == []

    def note_overdue(self) -> None:
        """By hand: writes whose time is up set their partition aside, before anything is placed."""
        for append, started_s in self.appends.items():
            truth = self.truth[append.request]
            is_late = self.now_s >= started_s + WRITE_TIMEOUT_S and append not in self.overdue
            if is_late and truth.answer is None and self.now_s < truth.deadline_s:
                self.overdue.add(append)
                self.note_failure(append.partition)

    # --- what may happen -------------------------------------------------------------------------

    @precondition(lambda self: len(self.truth) < 12)
    @rule(size=st.integers(1, 30), timeout_s=st.sampled_from([0.02, 1.0, 4.0, 30.0]))
    def a_request_comes(self, size: int, timeout_s: float) -> None:
        number = len(self.truth)
        self.truth[number] = Truth(size, self.now_s + timeout_s)
        self.run(
            self.machine.offer(
                self.now_s, number, size=size, deadline_s=self.truth[number].deadline_s
            )
        )

    def pick(self, data: st.DataObject) -> Append:
        return data.draw(st.sampled_from(sorted(self.appends, key=repr)))

    @precondition(lambda self: self.appends)
    @rule(data=st.data(), end=st.sampled_from(["written", "failed", "lost", "vanished"]))
    def an_append_ends(self, data: st.DataObject, end: str) -> None:
        append = self.pick(data)
        started_s = self.appends.pop(append)
        truth = self.truth[append.request]
        if end in ("written", "lost"):
            truth.written_in.append(append.partition)
            self.backlog[append.partition] += truth.size
        named = (self.now_s, append.request, append.attempt, append.partition)
        if end == "written":
            if started_s >= self.aside[append.partition].since_s:
                self.aside[append.partition] = Aside()
            # Those who wait are placed by the count, and that has grown.
            self.quietly_observe()
            self.run(self.machine.written(*named))
        elif end == "failed":
            self.note_failure(append.partition)
            self.run(self.machine.failed(*named))
        else:
            self.note_failure(append.partition)
            self.run(self.machine.unknown(*named))
            self.quietly_observe()

    def quietly_observe(self) -> None:
        self.machine._backlog = dict(self.backlog)

    def readable(self) -> list[ReadBack]:
        """A read back waits for the writes that were handed in before it."""
        return [
            read
            for read in self.reads
            if not any(append.request == read.request for append in self.appends)
        ]

    @precondition(lambda self: self.readable())
    @rule(data=st.data(), works=st.booleans())
    def a_read_back_ends(self, data: st.DataObject, works: bool) -> None:
        read = data.draw(st.sampled_from(self.readable()))
        self.reads.remove(read)
        named = (self.now_s, read.request, read.attempt)
        if works:
            truth = self.truth[read.request]
            found = truth.size if read.partition in truth.written_in else 0
            self.run(self.machine.read(*named, found))
        else:
            self.run(self.machine.unreadable(*named))

    @rule(pause_s=st.sampled_from([0.01, 0.25, 0.5, 1.0, 3.0, 6.0]))
    def time_passes(self, pause_s: float) -> None:
        until_s = self.now_s + pause_s
        while self.machine.next_s <= until_s:
            self.now_s = max(self.now_s, self.machine.next_s)
            self.note_overdue()
            self.run(self.machine.tick(self.now_s))
            assert self.machine.next_s > self.now_s
        self.now_s = until_s

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def a_caller_goes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.truth)))
        self.run(self.machine.abandon(self.now_s, number))

    @precondition(lambda self: not self.stopped)
    @rule(settled=st.integers(1, 20), data=st.data())
    def records_are_settled(self, settled: int, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.backlog)))
        self.backlog[number] = max(0, self.backlog[number] - settled)
        self.run(self.machine.observe(self.now_s, self.backlog))

    @precondition(lambda self: not self.stopped and len(self.truth) > 6)
    @rule()
    def the_node_stops(self) -> None:
        self.stopped = True
        until_s = self.now_s + 2.0
        for truth in self.truth.values():
            truth.deadline_s = min(truth.deadline_s, until_s)
        self.run(self.machine.stop(self.now_s, until_s))

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def nothing_is_there_twice(self) -> None:
        assert all(len(truth.written_in) <= 1 for truth in getattr(self, "truth", {}).values())

    @invariant()
    def everybody_is_answered_by_the_deadline(self) -> None:
        for truth in getattr(self, "truth", {}).values():
            assert truth.answer is not None or self.now_s < truth.deadline_s


PlacingAgainstOracle.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None
)
TestPlacingAgainstOracle = PlacingAgainstOracle.TestCase
