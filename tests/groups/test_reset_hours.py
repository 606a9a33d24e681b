"""An operator resets the group again and again, back and ahead, in an hour in which everything else
goes wrong, too (hour.py): what comes again comes in order, what is passed over is told, and nothing
else is lost, passed or doubled."""

from __future__ import annotations

import logging

import pytest
import structlog

from headgate.decide.coordination.groups import regrouping
from headgate.decide.coordination.topics import operating
from headgate.model.groups import Group, group_id
from headgate.services.coordinator.groups import _Noting
from headgate.tasks import deaths
from tests.groups.hour import Hour
from tests.groups.system import PARTITIONS
from tests.virtual_time import run_virtual

FOR_S = 900.0
OFTEN = 9
"""Of what happens."""
RADAR = group_id("flights", "radar")


class ResetHour(Hour):
    def steps(self):  # type: ignore[no-untyped-def]  # as there
        return {**super().steps(), self.the_group_is_reset: OFTEN}

    async def the_group_is_reset(self) -> str:
        coordinator = self.system.coordinator
        cluster = coordinator.cluster
        group = cluster.groups.by_id.get(RADAR)
        if group is None or operating.learning_refusal(cluster) is not None:
            return "not now"
        heads = {number: self.system.head(number) for number in range(PARTITIONS)}
        wanted = self._wanted(heads)
        positions = await self.system.checkpoints.of_group(group.id)
        wishes = regrouping.wishes(group, positions, wanted, heads)
        epochs = cluster.groups.epochs(group)
        await _Noting(self.system.checkpoints, positions, epochs).note(wishes)
        for number, to in wanted.items():
            ahead = {_target(group, one) for one in wishes if _goes_ahead(one, number)}
            self.oracle.group_reset(number, to, heads[number], ahead=ahead)
        coordinator.apply(coordinator.cluster.regroup(group.id, wanted.keys()))
        self.oracle.seen["group reset"] += 1
        return f"to {wanted}, which end at {heads}"

    def _wanted(self, heads: dict[int, int]) -> dict[int, int]:
        """To the end, or some records before it, but no further back than the log goes."""
        back = self.chance.choice((0, 1, 5, 20, 40, 80))
        begins = {number: self.system.earliest(number) - 1 for number in heads}
        return {number: max(begins[number], head - back) for number, head in heads.items()}


def _goes_ahead(wish: regrouping.Wish, partition: int) -> bool:
    return wish.ref.partition == partition and wish.goes_ahead


def _target(group: Group, wish: regrouping.Wish) -> int:
    names = [group.target_name(number) for number in range(group.targets)]
    return names.index(wish.ref.topic)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_group_that_is_reset_while_everything_goes_wrong(seed: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def scenario() -> Hour:
        hour = ResetHour(seed)
        await hour.run(for_s=FOR_S)
        return hour

    hour = run_virtual(scenario())
    assert not hour.oracle.violations, f"{hour.oracle.violations[0]}\n{hour}"
    assert all(hour.oracle.seen[what] for what in ("group reset", "reset", "passed over"))
    assert deaths.counts() == {}
