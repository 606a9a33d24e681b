"""How much a consumer may have in hand, and for how long anything may take that concerns one."""

from __future__ import annotations

from dataclasses import dataclass

CHECK_INS_MISSED = 3
"""After so many without an answer a connection to the coordinator is lost."""
SURE_LEAST_S = 1.5
"""More than passes between two looks whether the coordinator is there."""


@dataclass(frozen=True, slots=True)
class ConsumerBounds:
    """`prefetch` items may be unacknowledged per target, `in_hand` in all, and `in_hand_bytes` of
    their documents: nothing more is handed out until some are acknowledged. A consumer has
    `release_s` to finish with a target that goes elsewhere; positions are saved every `save_s`."""

    prefetch: int = 100
    in_hand: int = 1_000
    in_hand_bytes: int = 64 * 1024 * 1024
    release_s: float = 10.0
    keep_s: float = 900.0
    """For so long it can have more time, by saying again and again that it works on it."""
    save_s: float = 1.0
    join_s: float = 15.0
    unsure_s: float = 30.0
    """Less than a lease: for so long events are handed out that neither the coordinator nor the
    store says are still this consumer's."""
    noticed_s: float = 8.0
    """After so long without a word of it, the coordinator doesn't count as connected."""
    beyond_end_s: float = 30.0
    """For a log that has lost what the group has seen of it to be moved on."""


def sure_for_s(*, lease_s: float) -> float:
    """How long events may be handed out after the last check-in that the coordinator has answered
    was said: the lease of a gateway that is cut off began with that. Half of a lease is enough, and
    one that is too short for two looks leaves `SURE_LEAST_S`."""
    return max(SURE_LEAST_S, lease_s / 2)
