"""The judge of the hour, where it could be wrong by itself."""

from __future__ import annotations

import pytest

from headgate.decide.placement import partition_of
from headgate.services.gateway.consumer_bounds import ConsumerBounds
from tests.groups.oracle import Oracle

TARGETS = 8


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_key_that_was_never_sent_is_accounted_for_where_its_target_was_told(
    is_told: bool,
) -> None:
    oracle = Oracle(ConsumerBounds())
    oracle.targets = TARGETS
    oracle.appended(2, 873, "key-98")
    mine = partition_of("key-98", collection="", count=TARGETS)
    oracle.told[mine if is_told else (mine + 1) % TARGETS, 2].append((870, 880))
    assert oracle.missing() == ([] if is_told else [((2, 873), "key-98")])
