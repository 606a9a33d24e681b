"""Whether and when a role that ended is started again, and what is said about it."""

from __future__ import annotations

from dataclasses import dataclass

SENTENCE = "headgate: "
"""How a line of a role begins that is meant for people."""
TRACEBACK = "Traceback (most recent call last):"
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


def last_words(log: str) -> str:
    """The last sentence for people in what a role wrote, or the error below its last traceback,
    whichever came later; empty where there is neither."""
    found, in_traceback = "", False
    for line in log.splitlines():
        if line.startswith(SENTENCE):
            found, in_traceback = line.removeprefix(SENTENCE), False
        elif line == TRACEBACK:
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            found, in_traceback = line, False
    return found


def restart_sentence(
    *, ended: str, reason: str, last_reason: str, delay_s: float, log_file: str
) -> str:
    """What is said when a role `ended` and is started again; a reason that was said the last time
    isn't said again."""
    it_again = f"it again in {delay_s:.1f} s"
    if not reason:
        return f"{ended}; starting {it_again}"
    if reason == last_reason:
        return f"{ended} for the same reason; starting {it_again}"
    return f"{ended}: {reason.rstrip('.')}. Starting {it_again} (more in {log_file})"
