"""A coordinator whose store of positions is damaged, slow or away: nobody else waits for that."""

from __future__ import annotations

from headgate.model.event import PartitionRef
from headgate.model.position import Position, Tally
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.term_doubles import Stage
from tests.virtual_time import run_virtual

FLIGHTS = PartitionRef("flights", 0)
OTHER = PartitionRef("flights", 1)


class Positions(Stage):
    """With a store of positions that does what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: FaultyCheckpoints = FaultyCheckpoints()


def test_of_one_that_cannot_be_read_what_was_known_is_told_and_of_others_what_is_so() -> None:
    async def play() -> None:
        stage = Positions()
        term = await stage.begin()
        for ref in (FLIGHTS, OTHER):
            stage.positions.put(ref, Position(3, Tally(acknowledged=3)))
        await term.stored()
        stage.positions.damaged.add(FLIGHTS)
        stage.positions.put(OTHER, Position(7, Tally(acknowledged=7)))
        stored = await term.stored()
        assert {ref: one.settled for ref, one in stored.positions.items()} == {FLIGHTS: 3, OTHER: 7}
        assert term.positions_error == "what is stored for flights:0 is no position"
        stage.positions.damaged.clear()
        await term.stored()
        assert term.positions_error == ""
        await stage.end(term)

    run_virtual(play())
