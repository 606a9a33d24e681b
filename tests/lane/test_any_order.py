"""Whatever a lane hears, in whatever order, and whatever fails meanwhile: its states know each
event, it ends when it is told to, and nothing of it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.deaths import deaths
from headgate.decide.lane.checkpoints import Checkpoint
from headgate.errors import StorageFailed
from headgate.lane.tenure import LeftBehind
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.topology import Node, Owner, Topology
from tests.lane.world import LaneWorld, everything
from tests.virtual_time import run_virtual

GATEWAYS = ("gateway-1", "gateway-2", "gateway-3")
PAUSES_S = (0.0, 0.0, 0.001, 0.05, 0.5, 1.0, 3.0, 10.0, 31.0)
ENDS_WITHIN_S = 300.0
AWAY = StorageFailed("the store is away")


class AnyOrder(LaneWorld):
    """Everything comes by chance. `does` is what may happen, each as often as its weight says."""

    def __init__(self, chance: Random) -> None:
        super().__init__(
            partitions=chance.randint(1, 3),
            window_s=chance.choice([5.0, 50.0, 1e6]),
            report_interval_s=2.0,
            flush_timeout_s=2.0,
            checkpoint_timeout_s=2.0,
            delivery_timeout_s=1.0,
        )
        self.chance = chance
        self.generation = 0
        self.does: list[tuple[int, Callable[[], object]]] = [
            (8, self.comes_back),
            (6, self.cut_off),
            (8, lambda: self.push(self.some_topology())),
            (12, lambda: self.push(self.some_snapshot())),
            (4, lambda: self.push(self.some_changes())),
            (2, lambda: self.push(from_coordinator.EndWindow("over"))),
            (1, lambda: self.push(from_coordinator.EndWindow("at once", hand_over=False))),
            (1, lambda: self.push(from_coordinator.Refused("somebody else is there"))),
            (4, lambda: self.push(from_coordinator.LetGo(self.some_owners(), settle=True))),
            (1, lambda: self.push(from_coordinator.LetGo(self.some_owners(), settle=False))),
            (4, lambda: self.push(from_coordinator.Prove(self.chance.randint(0, 9)))),
            (4, lambda: self.push(from_coordinator.ClaimNow(self.chance.randint(0, 4)))),
            (2, lambda: self.push(from_coordinator.AskEvidence(1, self.refs[0], 1))),
            (1, self.is_overtaken),
            (8, self.stores_fail_or_not),
            (4, lambda: self.append(3, partition=self.chance.randrange(len(self.refs)))),
        ]

    def welcome(self) -> to_coordinator.Hello:
        """With a topology, or not yet."""
        assert self.session is not None
        self.away = False
        hello = self.session.connect()
        self.push(from_coordinator.Welcome("coordinator-1", 30_000, 5_000))
        if self.chance.random() < 0.4:
            self.push(self.some_topology())
        return hello

    def comes_back(self) -> None:
        if self.session is not None and not self.session.closed:
            self.welcome()

    def some_topology(self) -> from_coordinator.PushTopology:
        self.generation += 1
        there = self.chance.sample(GATEWAYS, self.chance.randint(0, 3))
        nodes = tuple(Node(name, "gateway", f"http://{name}") for name in there)
        known = Topology(self.generation, nodes=nodes, sources=self.some_owners())
        return from_coordinator.PushTopology(known)

    def some_snapshot(self) -> from_coordinator.SubscriptionSnapshot:
        self.revision += self.chance.choice([0, 1, 1])
        names = [f"s{n}" for n in range(self.chance.randint(0, 3))]
        known = tuple(everything(name, self.chance.choice(GATEWAYS)) for name in names)
        more = self.chance.random() < 0.2
        return from_coordinator.SubscriptionSnapshot(max(1, self.revision), known, more)

    def some_changes(self) -> from_coordinator.SubscriptionChanges:
        self.revision += 1
        return from_coordinator.SubscriptionChanges(self.revision, (everything("s9"),), ("s1",))

    def some_owners(self) -> tuple[Owner, ...]:
        return tuple(self.chance.sample(self.spec.owns, self.chance.randint(0, len(self.refs))))

    def is_overtaken(self) -> None:
        self.checkpoints.stored[self.chance.choice(self.refs)] = Checkpoint(5, 9, 0, settled=0)

    def stores_fail_or_not(self) -> None:
        self.checkpoints.failing, self.letters.failing, self.log.failing = (
            self.chance.choice([None, None, AWAY]) for _ in range(3)
        )
        self.checkpoints.takes_s = self.chance.choice([0.0, 0.01, 1.0, 3.0, 6.0])
        self.checkpoints.damaged = {ref for ref in self.refs if self.chance.random() < 0.2}
        self.gateways.hanging = {name for name in GATEWAYS if self.chance.random() < 0.3}
        self.hears = self.chance.random() < 0.7

    def all_is_well(self) -> None:
        self.checkpoints.failing = self.letters.failing = self.log.failing = None
        self.checkpoints.takes_s, self.checkpoints.damaged = 0.0, set()
        self.gateways.hanging, self.hears = set(), True

    async def happens(self, steps: int) -> None:
        weights, does = zip(*self.does, strict=True)
        for _ in range(steps):
            if self.life.done():
                return
            [do] = self.chance.choices(does, weights)
            do()
            await asyncio.sleep(self.chance.choice(PAUSES_S))

    async def ends(self) -> None:
        """As it is told to, again and again: who was cut off hasn't heard it."""
        async with asyncio.timeout(ENDS_WITHIN_S):
            while not self.life.done():
                self.comes_back()
                self.push(from_coordinator.EndWindow("the end", hand_over=False))
                await asyncio.wait([self.life], timeout=5.0)


async def _lived(seed: int, notes: Path) -> None:
    chance = Random(seed)
    world = AnyOrder(chance)
    if chance.random() < 0.6:
        world.noting(notes)
    if world.notes and chance.random() < 0.5:
        former = world.successor(window=2)
        former.start()
        await former.subscribed(everything("s1"))
        await former.die()
        world.revision = former.revision
    world.away = chance.random() < 0.5
    world.start()
    await asyncio.sleep(0)
    await world.happens(chance.randint(5, 60))
    world.all_is_well()
    if chance.random() < 0.2:
        world.life.cancel()
        await asyncio.wait([world.life], timeout=ENDS_WITHIN_S)
    else:
        await world.ends()
    if not world.life.cancelled():
        assert isinstance(world.life.exception(), LeftBehind | StorageFailed | None)
        await asyncio.gather(world.lane.tally(), return_exceptions=True)
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert deaths.counts().keys() <= {"lane looking"}, "but to begin anew with what others left"


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_lane_hears_everything_in_any_order(seed: int) -> None:
    deaths.forget()
    with TemporaryDirectory() as notes:
        run_virtual(_lived(seed, Path(notes)))
    deaths.forget()
