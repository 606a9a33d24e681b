"""Whether and when a role that ended is started again."""

from __future__ import annotations

from dataclasses import dataclass

EXIT_OPERATOR = 2
"""A role ends with this code when only the operator can help; starting it again would not."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Backoff between starts; a role that ran for `stable_s` has earned a quick restart."""

    initial_s: float = 0.2
    max_s: float = 10.0
    multiplier: float = 2.0
    stable_s: float = 30.0

    def delay_s(self, *, failures: int) -> float:
        """The pause before the next start after `failures` ends in a row (1 is the first)."""
        return min(self.initial_s * self.multiplier ** min(failures - 1, 32), self.max_s)

    def failures_after(self, *, failures: int, ran_s: float) -> int:
        """How many ends in a row that makes, the present one included."""
        return 1 if ran_s >= self.stable_s else failures + 1
