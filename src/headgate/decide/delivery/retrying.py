"""How long to wait before the next attempt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, capped; `jitter` (0 to 1, drawn by the caller) spreads the attempts."""

    initial_s: float = 0.1
    max_s: float = 5.0
    multiplier: float = 2.0

    def delay_s(self, attempt: int, *, jitter: float) -> float:
        """The delay after failed attempt number `attempt` (0 is the first).

        Between half of and the whole exponential delay, never above `max_s`.
        """
        exponent = min(attempt, 64)
        full_s = min(self.initial_s * self.multiplier**exponent, self.max_s)
        return full_s * (0.5 + 0.5 * jitter)
