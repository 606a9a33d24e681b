"""Some seeds of the simulation (`make sim` runs more): the promise holds in all of them.

Which situations they meet is in tests/sim/situations.py; a finding of any seed becomes a test of
its own, because a seed means something else after any change.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.sim.__main__ import ran

SEEDS = (1, 3, 4, 5, 6, 7)
"""Of those that live quickly: many letters in queues of five take ten times as long."""
lived = cache(ran)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_goes_wrong_everybody_gets_what_was_acknowledged(seed: int) -> None:
    ended = lived(seed)
    assert not ended.violations, "\n".join([*ended.story[-40:], *ended.violations])
    assert ended.seen["acknowledged"] > 0


def test_a_seed_is_a_run_byte_for_byte_in_another_process_too() -> None:
    one, two = lived(SEEDS[0]), ran(SEEDS[0])
    assert one == two
    assert one.digest
