"""Regular expressions that can't explode: every pattern is searched in time linear in the text.

Python's `re` backtracks, and no simple rule keeps a hostile pattern from taking exponential time
(`a?a?a?…aaa` nests nothing). So a pattern becomes a small automaton that is in all of its states
at once; the sets of states it has met are remembered, which makes the usual search one dictionary
lookup per character.

Invariant: a search takes at most (characters x MAX_STEPS) work, and a pattern remembers at most
about MAX_REMEMBERED steps and moves. That memory is the only thing that changes, and no answer
depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headgate.decide.filter.regex import (
    Chars,
    Choice,
    Concat,
    Edge,
    Part,
    PatternRefused,
    Ranges,
    Repeat,
    read_pattern,
)

MAX_STEPS = 256
MAX_SUBJECT_CHARS = 4_096
MAX_REMEMBERED = 2_048


@dataclass(slots=True)
class _Step:
    """One state: reads a character of `chars`, waits for an edge, or moves on for free to `to`."""

    chars: Ranges | None = None
    edge: Literal["start", "end"] | None = None
    to: list[int] = field(default_factory=list)


class _Builder:
    """Lays out the steps, last ones first."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self._work = 0

    def add(self, step: _Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def into(self, part: Part, following: int) -> int:
        """The first step of `part`, when `following` comes behind it."""
        # Work is counted, not steps: repeating something empty makes no step but takes time.
        self._work += 1
        if self._work > MAX_STEPS:
            raise PatternRefused(
                0, f"with its repetitions unrolled it needs over {MAX_STEPS} steps"
            )
        match part:
            case Chars():
                return self.add(_Step(chars=part.ranges, to=[following]))
            case Edge():
                return self.add(_Step(edge=part.side, to=[following]))
            case Concat():
                for one in reversed(part.parts):
                    following = self.into(one, following)
                return following
            case Choice():
                return self.add(_Step(to=[self.into(one, following) for one in part.parts]))
            case Repeat():
                return self._repeat(part, following)

    def _repeat(self, part: Repeat, following: int) -> int:
        if part.most is None:
            loop = self.add(_Step(to=[following]))
            self.steps[loop].to.append(self.into(part.part, loop))
            following = loop
        else:
            skip = following
            for _ in range(part.most - part.least):
                following = self.add(_Step(to=[skip, self.into(part.part, following)]))
        for _ in range(part.least):
            following = self.into(part.part, following)
        return following


@dataclass(slots=True, eq=False)
class _Situation:
    """A set of steps the automaton can be in, and where each character seen so far leads."""

    steps: frozenset[int]
    matched: bool
    matched_at_end: bool
    moves: dict[str, _Situation] = field(default_factory=dict)


class Pattern:
    """A compiled pattern. Raises PatternRefused for what it doesn't support."""

    __slots__ = ("_begin", "_final", "_first", "_known", "_remembered", "_steps")

    def __init__(self, pattern: str) -> None:
        builder = _Builder()
        self._final = builder.add(_Step())
        self._begin = builder.into(read_pattern(pattern), self._final)
        self._steps = builder.steps
        self._first = self._situation(self._reach([self._begin], at_start=True), at_start=True)
        self._forget()

    def found_in(self, text: str) -> bool:
        """Does the pattern match anywhere in `text`?"""
        situation = self._first
        if situation.matched:
            return True
        for char in text:
            following = situation.moves.get(char)
            if following is None:
                following = self._move(situation, char)
            if following.matched:
                return True
            if not following.steps:
                return False
            situation = following
        return situation.matched_at_end

    def _forget(self) -> None:
        self._known: dict[frozenset[int], _Situation] = {}
        self._remembered = 0
        self._first.moves.clear()

    def _move(self, situation: _Situation, char: str) -> _Situation:
        if self._remembered >= MAX_REMEMBERED:
            self._forget()
        code = ord(char)
        # A match may begin behind any character, so the first step is always among the next ones.
        ahead = [self._begin]
        for number in situation.steps:
            step = self._steps[number]
            if step.chars is not None and any(low <= code <= high for low, high in step.chars):
                ahead.extend(step.to)
        reached = self._reach(ahead)
        following = self._known.get(reached)
        if following is None:
            following = self._known[reached] = self._situation(reached)
            self._remembered += len(reached)
        situation.moves[char] = following
        self._remembered += 1
        return following

    def _situation(self, reached: frozenset[int], *, at_start: bool = False) -> _Situation:
        at_end = self._reach(reached, at_start=at_start, at_end=True)
        return _Situation(reached, self._final in reached, self._final in at_end)

    def _reach(
        self, numbers: list[int] | frozenset[int], *, at_start: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """The steps where the automaton waits, having made every free move from `numbers`."""
        seen: set[int] = set()
        waiting: set[int] = set()
        pending = list(numbers)
        while pending:
            number = pending.pop()
            if number in seen:
                continue
            seen.add(number)
            step = self._steps[number]
            edge_here = at_start if step.edge == "start" else at_end
            if step.chars is not None or number == self._final:
                waiting.add(number)
            elif step.edge is None or edge_here:
                pending.extend(step.to)
            elif step.edge == "end":
                waiting.add(number)
        return frozenset(waiting)
