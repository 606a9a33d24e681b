"""How terms of a coordinator failed, and what follows from it.

The next campaign waits, longer with every failure in a row and never longer than the policy's
bound, so that a fault that comes back with every term doesn't keep everybody connecting anew. Where
it was the same process whose words ended several terms in a row, the next term begins without that
one: what one node can't say without harm must not cost all the others their coordinator.

Invariant: nobody is kept out for longer than it takes a term to prove that it lasts, or after a
restart of its process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headgate.decide.operations.supervision import RestartPolicy
from headgate.model.control.to_coordinator import Hello

BLAMED_MAX = 2
"""So many terms may end by messages of one process before the next one goes on without it."""
SHOWN_S = 600.0
"""How long a failure is worth a word in /health, once a term has lasted."""
_NAMES_MAX = 1_000

_Process = tuple[str, str, str]


@dataclass(slots=True)
class TermFailures:
    """`count` are all there were; `policy` says how long to wait, and when a term is proven."""

    policy: RestartPolicy
    count: int = 0
    _in_a_row: int = 0
    _reason: str = ""
    _last_s: float = 0.0
    _blamed: Counter[_Process] = field(default_factory=Counter)

    def failed(self, reason: str, *, by: Hello | None, ran_s: float, now_s: float) -> float:
        """A term ended by an error; returns how long to wait before the next campaign.

        `by` is the node whose message it ended with, if a message ended it.
        """
        self._in_a_row = self.policy.failures_after(failures=self._in_a_row, ran_s=ran_s)
        if self._in_a_row == 1 or len(self._blamed) > _NAMES_MAX:
            self._blamed.clear()
        if by is not None:
            self._blamed[_process(by)] += 1
        self.count += 1
        self._last_s = now_s
        self._reason = reason if by is None else f"{reason}, when {by.role} {by.node_id} spoke"
        return self.policy.delay_s(failures=self._in_a_row)

    def keeps_out(self, hello: Hello, *, ran_s: float) -> bool:
        """Whether a term that has run for so long goes on without the process that says `hello`."""
        return ran_s < self.policy.stable_s and self._blamed[_process(hello)] >= BLAMED_MAX

    def sentence(self, now_s: float) -> str:
        """What to tell about it; empty when there is nothing to tell, or not any more."""
        ago_s = now_s - self._last_s
        if not self.count or ago_s > SHOWN_S:
            return ""
        terms = "a term" if self.count == 1 else f"{self.count} terms"
        return (
            f"{terms} of this coordinator ended by an error, the last one {ago_s:.0f} s ago: "
            f"{self._reason}; its log says more"
        )


def _process(hello: Hello) -> _Process:
    return hello.role, hello.node_id, hello.incarnation
