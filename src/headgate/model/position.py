"""How far a partition is settled, and what became of every record up to there."""

from __future__ import annotations

import msgspec


class Tally(msgspec.Struct, frozen=True):
    """Records by what settled them; one that several gateways got counts once, by the worst of it:
    dead before parked before acknowledged before released. `skipped` records were passed over: lost
    with the log's retention, or by an operator's reset.

    Invariant: kept with a position, the sum is the position. Only two things part them: an operator
    who reset the position back has records settled again, and counted again, so that the sum is
    above; a position from before there were tallies begins with records of which nobody knows what
    became of them, so that the sum is below.
    """

    acknowledged: int = 0
    parked: int = 0
    dead: int = 0
    released: int = 0
    unmatched: int = 0
    skipped: int = 0

    @property
    def total(self) -> int:
        return (
            self.acknowledged
            + self.parked
            + self.dead
            + self.released
            + self.unmatched
            + self.skipped
        )


Tries = tuple[tuple[int, int, int], ...]
"""Seqs, how often the record of each was handed to a consumer in vain, and how that is known of the
last time (decide.groups.tries.Known)."""


class Position(msgspec.Struct, frozen=True):
    """`settled` is the highest seq with everything up to it settled (0: nothing yet). Records up to
    `redeliver_to` were delivered before: an operator wants them again. Those after `settled` up to
    `skip_to` are not to be read: an operator wants them skipped, and subscribers told to resync; it
    means nothing once `settled` is there. `tried` says of records after `settled` how often they
    were handed to consumers of a group in vain. `stopped` says why nothing is to be read after
    `settled` before an operator has reset the position; empty where nothing keeps lanes from
    reading. Records up to `again_to` were processed by consumers of a group before: an operator
    wants them again. So may some of those after `settled` up to `ahead_to`, ahead of what kept the
    position, by consumers that remember it; it is 0 once `settled` is there.

    `unreadable` says why what is stored is no position, of one that was listed: the rest of it
    means nothing then."""

    settled: int = 0
    tally: Tally = Tally()
    redeliver_to: int = 0
    skip_to: int = 0
    tried: Tries = ()
    stopped: str = ""
    again_to: int = 0
    unreadable: str = ""
    ahead_to: int = 0

    @property
    def is_back(self) -> bool:
        """Whether the position was further once, before the log lost its history or an operator put
        it back."""
        return max(self.redeliver_to, self.again_to) > self.settled

    @property
    def repeated(self) -> int:
        """By how many records operators have put it back so far. Reading on leaves the number as it
        is, so it names the last reset that brings records again."""
        return self.tally.total - self.settled
