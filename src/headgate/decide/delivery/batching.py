"""When a batch for a gateway is sent.

`max_size`, `max_bytes` and `max_wait_s` are limits: a full batch goes at once, and no event waits
longer than `max_wait_s` for company. Between them a batch doesn't wait for its own sake: it goes as
soon as the gateway's pipeline is free, but small batches at most once per `flush_interval_s`. So a
lone event leaves at once, a trickle is gathered for milliseconds, and a flood travels in full
batches.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_size: int = 100
    max_wait_s: float = 0.050
    flush_interval_s: float = 0.010
    max_bytes: int = 8 * 1024 * 1024
    """Of its documents; one that has more goes alone."""

    def send_at(self, *, waiting: int, first_at_s: float, last_sent_s: float) -> float:
        """The instant at which what waits should be sent (it may have passed).

        `first_at_s` is when the oldest waiting event arrived, `last_sent_s` when the last batch
        for this gateway left.
        """
        if waiting >= self.max_size:
            return first_at_s
        gathered_s = max(first_at_s, last_sent_s + self.flush_interval_s)
        return min(gathered_s, first_at_s + self.max_wait_s)
