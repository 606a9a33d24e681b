"""A lane lets others go first by the time that records take, not by how many there are."""

from __future__ import annotations

import asyncio

import pytest

from headgate.decide.matching.index import Matched, MatchIndex
from headgate.decide.pacing import TURN_S, Pace
from headgate.model.event import Record
from tests.lane.world import LaneWorld, everything, settle_down
from tests.virtual_time import run_virtual

COSTLY_S = 0.1
"""What one record takes, as with many filters and a document made for them."""


def test_a_turn_is_over_when_its_time_is() -> None:
    now = [10.0]
    pace = Pace(lambda: now[0])
    pace.begin()
    assert not pace.is_over()
    now[0] += TURN_S
    assert pace.is_over()
    pace.begin()
    assert not pace.is_over()


def _makes_matching_costly(world: LaneWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    match = MatchIndex.match

    def costly(self: MatchIndex, record: Record, document: object) -> Matched:
        world.machine.passes(COSTLY_S)
        return match(self, record, document)

    monkeypatch.setattr(MatchIndex, "match", costly)


async def _longest_turn_s(world: LaneWorld, turns: int) -> float:
    """How long somebody who wants to go on at once has to wait at most, in so many turns."""
    longest_s, before_s = 0.0, world.machine.monotonic_s()
    for _ in range(turns):
        await asyncio.sleep(0)
        now_s = world.machine.monotonic_s()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return longest_s


def test_a_lane_gives_way_after_each_record_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = LaneWorld()
        world.start()
        await world.subscribed(everything("s1"))
        _makes_matching_costly(world, monkeypatch)
        world.append(50)
        longest_s = await _longest_turn_s(world, 2_000)
        await settle_down(9)
        assert world.gateways.seqs("gateway-1") == list(range(1, 51))
        assert COSTLY_S <= longest_s < 2 * COSTLY_S

    run_virtual(scenario())
