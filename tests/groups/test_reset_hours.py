"""An operator resets the group again and again, back and ahead, in an hour in which everything else
goes wrong, too (hour.py): what comes again comes in order, what is passed over is told, and nothing
else is lost, passed or doubled."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import pytest
import structlog

from headgate import errors
from headgate.decide.coordination.groups import regrouping
from headgate.decide.coordination.topics import operating
from headgate.model.groups import Group, group_id
from headgate.services.coordinator.groups import _Noting
from headgate.tasks import deaths
from tests.groups.hour import Hour
from tests.groups.network import GatewaySide
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


class SlowResetHour(ResetHour):
    """A reset takes its time, may fail when some of it is noted, and is asked for again then; and
    gateways end connections, as where a token is over."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._is_resetting = False
        self._partition_resets: list[tuple[int, float]] = []

    def steps(self):  # type: ignore[no-untyped-def]  # as there
        return {**super().steps(), self.a_connection_is_ended: 6}  # type: ignore[no-untyped-call]

    async def a_connection_is_ended(self) -> str:
        member = self.some()
        for link in member.links():
            side = cast("GatewaySide | None", link._session)
            if side is not None and not (link.is_frozen or link.is_held):
                self.oracle.tag_links("reconnect", [link])
                side._connection.fail(errors.NotNow("the token is over"))
                self.oracle.seen["ended"] += 1
        return member.name

    async def a_partition_is_reset(self) -> str:
        before = len(self.oracle.resets)
        said = await super().a_partition_is_reset()
        for number, _, at_s in self.oracle.resets[before:]:
            self._partition_resets.append((number, at_s))
        return said

    async def the_group_is_reset(self) -> str:
        if self._is_resetting or self._group() is None:
            return "not now"
        heads = {number: self.system.head(number) for number in range(PARTITIONS)}
        wanted = self._wanted(heads)
        self._is_resetting = True
        self.beside(self._reset(wanted, heads))
        return f"by and by to {wanted}, which end at {heads}"

    def _group(self) -> Group | None:
        """Where a coordinator resets it."""
        cluster = self.system.coordinator.cluster
        if operating.learning_refusal(cluster) is not None:
            return None
        return cluster.groups.by_id.get(RADAR)

    async def _reset(self, wanted: dict[int, int], heads: dict[int, int]) -> None:
        """Until it has succeeded, or was never begun: half a reset is none."""
        began_s = asyncio.get_running_loop().time()
        fails = self.chance.choice((0, 0, 1, 2))
        has_begun = False
        try:
            while True:
                await self._a_while()
                if (group := self._group()) is None:
                    if not has_begun:
                        return
                    await asyncio.sleep(2.0)
                    continue
                positions = await self.system.checkpoints.of_group(group.id)
                wishes = list(regrouping.wishes(group, positions, wanted, heads))
                noting = _Noting(
                    self.system.checkpoints,
                    positions,
                    self.system.coordinator.cluster.groups.epochs(group),
                )
                await self._a_while()
                ahead = {
                    number: {_target(group, one) for one in wishes if _goes_ahead(one, number)}
                    for number in wanted
                }
                for number, to in wanted.items():
                    self.oracle.group_reset(
                        number, to, heads[number], ahead=ahead[number], is_over=False
                    )
                has_begun = True
                if fails:
                    fails -= 1
                    self.oracle.seen["half a reset"] += 1
                    self.chance.shuffle(wishes)
                    await noting.note(wishes[: self.chance.randrange(len(wishes) + 1)])
                    await asyncio.sleep(self.chance.choice((0.1, 3.0, 15.0)))
                    continue
                for wish in wishes:
                    await noting.note([wish])
                    await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.01, 0.3)))
                if self._group() is not None and self._is_over(wanted, ahead, began_s):
                    return
        finally:
            self._is_resetting = False

    async def _a_while(self) -> None:
        await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.3, 2.0)))

    def _is_over(self, wanted: dict[int, int], ahead: dict[int, set[int]], began_s: float) -> bool:
        coordinator, epochs = self.system.coordinator, self.oracle.epochs()
        try:
            coordinator.apply(coordinator.cluster.regroup(RADAR, wanted.keys()))
        except errors.HeadgateError:
            return False
        self.oracle.seen["group reset"] += 1
        for number, to in wanted.items():
            if not any(one == number and at_s >= began_s for one, at_s in self._partition_resets):
                self.oracle.passed(number, to, ahead=ahead[number], epochs=epochs)
        return True


def _goes_ahead(wish: regrouping.Wish, partition: int) -> bool:
    return wish.ref.partition == partition and wish.goes_ahead


def _target(group: Group, wish: regrouping.Wish) -> int:
    names = [group.target_name(number) for number in range(group.targets)]
    return names.index(wish.ref.topic)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "seed"),
    [(ResetHour, 1), (ResetHour, 2), (SlowResetHour, 2)],
    ids=["at once-1", "at once-2", "by and by-2"],
)
def test_a_group_that_is_reset_while_everything_goes_wrong(
    kind: type[ResetHour], seed: int
) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def scenario() -> Hour:
        hour = kind(seed)
        await hour.run(for_s=FOR_S)
        return hour

    hour = run_virtual(scenario())
    assert not hour.oracle.violations, f"{hour.oracle.violations[0]}\n{hour}"
    assert all(hour.oracle.seen[what] for what in ("group reset", "reset", "passed over"))
    if kind is SlowResetHour:
        assert all(hour.oracle.seen[what] for what in ("half a reset", "ended"))
    assert deaths.counts() == {}
