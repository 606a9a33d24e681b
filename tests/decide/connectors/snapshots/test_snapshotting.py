"""Snapshots beside a stream: every row has its place, whatever happens while it is read."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decide.connectors.snapshots.world import World, judge, run

SEEDS = st.integers(0, 2**32)
EXAMPLES = 250
"""What goes wrong takes several things at once."""
FEWER = 150
"""Where it goes wrong in one of 16."""


@given(SEEDS)
@settings(max_examples=EXAMPLES)
def test_rows_join_the_stream_without_a_gap_whoever_dies(seed: int) -> None:
    chance = Random(seed)
    world = World(chance, partitions=chance.randint(1, 3))
    for _ in range(chance.randrange(30)):
        world.commit()
    world.step()
    world.wish()
    world.deaths = chance.choice((0.0, 0.1, 0.2, 0.3))

    def work() -> None:
        for _ in range(chance.randrange(3)):
            world.commit()
        if chance.random() < 0.03:
            world.repartition(chance.randint(1, 4))
        if chance.random() < 0.02:
            world.wish()

    counts = run(world, work, steps=40)
    judge(world, counts)


@given(SEEDS)
@settings(max_examples=FEWER)
def test_what_a_former_reader_came_to_within_a_step_is_no_steps_of_the_next(seed: int) -> None:
    """Hardly anybody lives long enough to hand a chunk in to all partitions."""
    chance = Random(seed)
    world = World(chance, partitions=chance.randint(2, 3))
    for _ in range(30):
        world.commit()
    world.step()
    world.wish()
    world.deaths = 0.5

    def work() -> None:
        if chance.random() < 0.1:
            world.commit()

    counts = run(world, work, steps=40)
    judge(world, counts)


@given(SEEDS)
@settings(max_examples=EXAMPLES)
def test_what_was_lost_in_between_is_found_by_its_key(seed: int) -> None:
    chance = Random(seed)
    world = World(chance, partitions=chance.randint(1, 3))
    world.step()
    world.wish()
    counts = run(world, world.commit, steps=25)
    for _ in range(chance.randrange(20)):
        world.commit(told=False)
    world.reset()
    world.deaths = chance.choice((0.0, 0.2, 0.3))

    def work() -> None:
        if chance.random() < 0.7:
            world.commit()
        if chance.random() < 0.06:
            world.repartition(chance.randint(1, 4))

    counts |= run(world, work, steps=30)
    judge(world, counts)
