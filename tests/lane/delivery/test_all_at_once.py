"""An overtaking, a window's end, a letting-go, a lost coordinator and stores that hang, all at once
and in any order: a lane gets over it, and over what it has left it has said the truth.

Each seed is a story; a find becomes a test of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from headgate.errors import StorageFailed
from headgate.lane.life import Hold
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.topology import Owner
from tests.lane.world import LaneWorld, everything, settle_down
from tests.virtual_time import run_virtual

PARTITIONS = 3
EVENTS = 12
HANGS_S = 1_000.0
ENDS_WITHIN_S = 60.0


class Story:
    """What happens to one lane; `told` names it, step by step."""

    def __init__(self, seed: int, told: list[str]) -> None:
        self.chance = random.Random(seed)
        self.world = LaneWorld(
            partitions=PARTITIONS,
            window_s=self.chance.choice((8.0, 1e6)),
            flush_timeout_s=2.0,
            checkpoint_interval_s=1.0,
            checkpoint_timeout_s=3.0,
            delivery_timeout_s=2.0,
            redrive_every_s=1.0,
            retry_max_s=1.0,
        )
        self.appended = [0] * PARTITIONS
        self.told = told

    async def lived(self) -> None:
        world, chance = self.world, self.chance
        world.start()
        steps: list[Callable[[], None]] = [
            self.append,
            self.append,
            self.append,
            self.overtake,
            self.find_stale,
            self.let_go,
            self.take,
            self.hand_over,
            self.end,
            self.go_away,
            self.come_back,
            self.prove,
            self.hang_gateway,
            self.hang_positions,
            self.fail_positions,
            self.fail_letters,
            self.mend,
        ]
        begins = chance.randrange(EVENTS) if chance.random() < 0.3 else 0
        for number in range(EVENTS):
            if number == begins and not world.away:
                await world.subscribed(everything("s1"))
            step = chance.choice(steps)
            self.told.append(f"{_now_s():.2f} {step.__name__}")
            step()
            await settle_down(chance.choice((0.0, 0.001, 0.2, 1.0, 2.5)))
        self.mend()
        self.come_back()
        await world.subscribed(everything("s1"))
        for partition in range(PARTITIONS):
            self.append_to(partition, 1)
        await settle_down(ENDS_WITHIN_S)
        self.check_what_it_holds()
        self.end()
        async with asyncio.timeout(ENDS_WITHIN_S):
            await world.dead()
        self.check_what_it_said()

    # --- what happens ----------------------------------------------------------------------------

    def append(self) -> None:
        self.append_to(self.chance.randrange(PARTITIONS), self.chance.choice((1, 5, 30)))

    def append_to(self, partition: int, count: int) -> None:
        self.world.append(count, partition=partition)
        self.appended[partition] += count

    def overtake(self) -> None:
        """Somebody claims a position, and nobody says so."""
        store, ref = self.world.checkpoints, self.chance.choice(self.world.refs)
        if (stored := store.stored.get(ref)) is not None:
            store.stored[ref] = replace(stored, epoch=9)

    def find_stale(self) -> None:
        self.world.gateways.stale.add(self.chance.choice(self.world.refs))

    def let_go(self) -> None:
        self._push(from_coordinator.LetGo(self._some(), settle=True))

    def take(self) -> None:
        self._push(from_coordinator.LetGo(self._some(), settle=False))

    def hand_over(self) -> None:
        self._push(from_coordinator.EndWindow("assignment", hand_over=True))

    def end(self) -> None:
        self._push(from_coordinator.EndWindow("test", hand_over=False))

    def prove(self) -> None:
        self._push(from_coordinator.Prove(1))

    def go_away(self) -> None:
        if not self.world.away and self._is_open():
            self.world.cut_off()

    def come_back(self) -> None:
        if self.world.away and self._is_open():
            self.world.welcome()

    def hang_gateway(self) -> None:
        self.world.gateways.hanging.add("gateway-1")

    def hang_positions(self) -> None:
        self.world.checkpoints.takes_s = HANGS_S

    def fail_positions(self) -> None:
        self.world.checkpoints.failing = StorageFailed("away")

    def fail_letters(self) -> None:
        self.world.letters.failing = StorageFailed("away")

    def mend(self) -> None:
        self.world.gateways.hanging.clear()
        self.world.checkpoints.takes_s = 0.0
        self.world.checkpoints.failing = self.world.letters.failing = None

    # --- what has to be --------------------------------------------------------------------------

    def check_what_it_holds(self) -> None:
        """All of what it still has is delivered, whatever it went through; a lane that has nothing
        is over, or has yet to hear who has what it handed off."""
        lane, is_over = self.world.lane, self.world.life.done()
        if lane._course.hold.state is Hold.READING and not lane.holding.partitions:
            assert is_over or any(
                isinstance(one, to_coordinator.Released) for one in self.world.sent
            )
        for at, ref in enumerate(self.world.refs):
            if ref in self.world.lane.holding.partitions and not self.world.life.done():
                seqs = self.world.gateways.seqs("gateway-1", at)
                assert set(seqs) == set(range(1, self.appended[at] + 1)), ref
                first = list(dict.fromkeys(seqs))
                assert first == sorted(first), f"{ref} is out of order"

    def check_what_it_said(self) -> None:
        """A position never passes what neither the gateway nor the store of letters has."""
        for at in range(PARTITIONS):
            accepted = set(self.world.gateways.seqs("gateway-1", at))
            letters = self.world.letters.letters
            accepted |= {one.delivery.seq for one in letters if one.ref == self.world.refs[at]}
            settled = self.world.position(at)
            assert accepted.issuperset(range(1, settled + 1)), self.world.refs[at]
        held = self.world.lane.holding
        assert not held.gone & held.partitions.keys()

    # --- parts -----------------------------------------------------------------------------------

    def _some(self) -> tuple[Owner, ...]:
        return tuple(o for o in self.world.spec.owns if self.chance.random() < 0.5)

    def _is_open(self) -> bool:
        return self.world.session is not None and not self.world.session.closed

    def _push(self, message: from_coordinator.FromCoordinator) -> None:
        if self._is_open() and not self.world.away:
            self.world.push(message)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("seed", range(40))
def test_a_lane_gets_over_all_of_it_at_once(seed: int) -> None:
    told: list[str] = []

    async def lived() -> None:
        story = Story(seed, told)
        await story.lived()

    try:
        run_virtual(lived())
    except BaseException as error:
        error.add_note("\n".join(told))
        raise
