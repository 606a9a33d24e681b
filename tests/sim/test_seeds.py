"""Some seeds of the simulation (`make sim` runs more): the promise holds in all of them, and most
of what is meant to be met is.

A finding of any seed becomes a test of its own, because a seed means something else after any
change; for the same reason nobody asks here that each situation is met by these.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.children import Child, ran
from tests.sim.situations import SITUATIONS, coverage

BATCHES = [
    (47001, 47005, 47009, 47011, 47012, 47019),
    (47026, 47027, 47042, 47044, 47048, 47058),
]
"""When they were chosen these met all situations but four between them."""
MET_AT_LEAST = len(SITUATIONS) // 4
"""By each batch, whatever has changed: nothing is left of a world that meets less."""


@pytest.mark.parametrize("seeds", BATCHES, ids=("one", "two"))
def test_whatever_goes_wrong_everybody_gets_what_was_acknowledged(seeds: tuple[int, ...]) -> None:
    met: Counter[str] = Counter()
    for seed in seeds:
        ended = ran(seed)
        story = "\n".join([*ended.story[-40:], *ended.violations])
        assert not ended.violations, f"seed {seed} failed:\n{story}"
        assert ended.seen["acknowledged"] > 0
        met.update(ended.met)
    assert sum(name in met for name in SITUATIONS) >= MET_AT_LEAST, coverage(met)


def test_a_seed_is_a_run_byte_for_byte_in_another_process_too_behind_others() -> None:
    first, second, *_ = BATCHES[0]
    one, two = Child(), Child()
    behind_nothing, behind_another = one.live(first), two.live(second)
    assert (behind_nothing, behind_another) == (two.live(first), one.live(second))
    assert behind_nothing.digest
