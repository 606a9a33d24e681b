"""How far a partition is settled, and what became of every record up to there."""

from __future__ import annotations

import msgspec


class Tally(msgspec.Struct, frozen=True):
    """Records by what settled them; one that several gateways got counts once, by the worst of it:
    dead before parked before acknowledged before released. `skipped` records were passed over: lost
    with the log's retention, or by an operator's reset.

    Invariant: kept with a position, the sum is the position, unless an operator has reset it back.
    """

    acknowledged: int = 0
    parked: int = 0
    dead: int = 0
    released: int = 0
    unmatched: int = 0
    skipped: int = 0


class Position(msgspec.Struct, frozen=True):
    """`settled` is the highest seq with everything up to it settled (0: nothing yet). Records up to
    `redeliver_to` were delivered before: an operator wants them again."""

    settled: int = 0
    tally: Tally = Tally()
    redeliver_to: int = 0
