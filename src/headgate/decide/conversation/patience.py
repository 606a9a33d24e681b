"""For how long a client that lost its gateway tries to find one again.

Invariant: an outage begins with the loss and ends when the client is live again, or has given up;
however often it is asked for meanwhile, that changes nothing about it.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class Patience:
    """Growing pauses between attempts, for ever, or until `attempts` or `for_s` are used up."""

    attempts: int | None = None
    for_s: float | None = None
    first_s: float = 0.1
    max_s: float = 5.0


class Outage:
    def __init__(self, patience: Patience, now_s: float) -> None:
        self._patience = patience
        self._give_up_s = None if patience.for_s is None else now_s + patience.for_s
        self._attempts = 0

    def next_pause_s(self, now_s: float) -> float | None:
        """The longest pause before the next attempt; None when there is to be none."""
        patience, attempt = self._patience, self._attempts
        is_late = self._give_up_s is not None and now_s >= self._give_up_s
        if is_late or attempt == patience.attempts:
            return None
        self._attempts += 1
        longest_s: float = patience.first_s * 2 ** min(attempt, MOST_DOUBLINGS)
        return min(patience.max_s, longest_s)
