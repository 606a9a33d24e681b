"""Which partitions of an opportunistic topic may be tried now.

A partition that failed is set aside, longer with every failure in a row; then one request at a time
probes it. One whose appends take much longer than its peers' is avoided while there is a choice,
and probed after a while too. Invariants: failures that were under way together count once; a write
that began before a partition was set aside doesn't bring it back; a slow partition is avoided only
where there is another to choose.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

SAMPLES_KEPT = 128
"""Per partition; the newest ones, within the window."""


@dataclass(frozen=True, slots=True)
class HealthRules:
    """`degraded_above_s` keeps noise among fast partitions from counting as degradation;
    `degraded_samples` is how many appends a partition is judged by at least."""

    set_aside_initial_s: float = 0.5
    set_aside_max_s: float = 5.0
    set_aside_multiplier: float = 1.5
    degraded_factor: float = 5.0
    degraded_window_s: float = 10.0
    degraded_above_s: float = 0.05
    degraded_samples: int = 10

    def set_aside_s(self, failures: int) -> float:
        """For how long, after `failures` in a row (at least one)."""
        exponent = min(failures - 1, 64)
        return min(
            self.set_aside_initial_s * self.set_aside_multiplier**exponent, self.set_aside_max_s
        )


@dataclass(slots=True)
class _State:
    """`samples` are (time, latency) of finished appends."""

    failures: int = 0
    slow: bool = False
    since_s: float = -math.inf
    until_s: float = -math.inf
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))

    @property
    def suspect(self) -> bool:
        return self.failures > 0 or self.slow


class Health:
    """Of the partitions of one topic."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._states: dict[int, _State] = {}

    def know(self, numbers: Iterable[int]) -> None:
        """From now on there are these partitions; what was learned about others is forgotten."""
        self._states = {number: self._states.get(number) or _State() for number in numbers}

    def failed(self, now_s: float, number: int) -> None:
        state = self._states.get(number)
        if state is None or (state.failures and now_s < state.until_s):
            return  # Gone, or set aside already by a write that was under way with this one.
        state.failures += 1
        state.since_s = now_s
        state.until_s = now_s + self._rules.set_aside_s(state.failures)

    def written(self, now_s: float, number: int, *, started_s: float) -> None:
        state = self._states.get(number)
        if state is None:
            return
        latency_s = now_s - started_s
        state.samples.append((now_s, latency_s))
        if state.suspect and started_s < state.since_s:
            return
        state.failures = 0
        # Most appends are fast beyond doubt and need no look at the peers.
        fast = latency_s <= self._rules.degraded_above_s
        limit_s = latency_s if fast else self._limit_s(now_s, number)
        if latency_s <= limit_s:
            state.slow = False
        elif state.slow or self._is_degraded(now_s, state, limit_s):
            state.slow = True
            state.since_s = now_s
            state.until_s = now_s + self._rules.degraded_window_s
            state.samples.clear()

    def _is_degraded(self, now_s: float, state: _State, limit_s: float) -> bool:
        p99_s = self._p99_s(now_s, state)
        return len(state.samples) >= self._rules.degraded_samples and p99_s > limit_s

    def _limit_s(self, now_s: float, number: int) -> float:
        """The latency above which `number` is degraded; infinite without peers to compare with."""
        others = [state for other, state in self._states.items() if other != number]
        peers = [p99_s for state in others if (p99_s := self._p99_s(now_s, state)) >= 0]
        if not peers:
            return math.inf
        return max(self._rules.degraded_above_s, self._rules.degraded_factor * median(peers))

    def _p99_s(self, now_s: float, state: _State) -> float:
        """Over the window; negative when nothing was appended in it."""
        after_s = now_s - self._rules.degraded_window_s
        while state.samples and state.samples[0][0] <= after_s:
            state.samples.popleft()
        if not state.samples:
            return -1.0
        latencies = sorted(latency_s for _, latency_s in state.samples)
        return latencies[math.ceil(0.99 * len(latencies)) - 1]

    def usable(self, now_s: float, oldest_s: Mapping[int, float]) -> list[int]:
        """What may be tried now; `oldest_s` has the start of each partition's oldest open write."""
        free: list[int] = []
        slow: list[int] = []
        for number, state in self._states.items():
            started_s = oldest_s.get(number)
            if not state.suspect:
                dragging = started_s is not None and self._is_dragging(now_s, number, started_s)
                (slow if dragging else free).append(number)
            elif now_s >= state.until_s and started_s is None:
                free.append(number)  # The probe.
            elif not state.failures:
                slow.append(number)
        return free or slow

    def _is_dragging(self, now_s: float, number: int, started_s: float) -> bool:
        age_s = now_s - started_s
        return age_s > self._rules.degraded_above_s and age_s > self._limit_s(now_s, number)

    def next_try_s(self, now_s: float) -> float:
        """When another partition may be tried for the sake of time alone; infinite: never."""
        times = (s.until_s for s in self._states.values() if s.suspect and s.until_s > now_s)
        return min(times, default=math.inf)
