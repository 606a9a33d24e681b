"""Consumer groups over HTTP: shown, and put elsewhere by an operator.

Invariant: where positions are to be is in the store before consumers are told to claim them
(decide/coordination/groups/regrouping.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import structlog

from headgate.decide.coordination.groups import regrouping
from headgate.decide.coordination.groups.regrouping import PlannedPartition, Wish
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics import operating
from headgate.decide.coordination.views.group_status import describe_groups
from headgate.decide.feed.start_positions import Since, parse_start
from headgate.errors import InvalidRequest
from headgate.model.event import PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.groups_api import (
    GroupInfo,
    GroupList,
    GroupPartition,
    GroupPartitionReset,
    GroupReset,
    GroupTarget,
    ResetGroup,
)
from headgate.model.http import Request, Response, Route, json_response
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.log import Extent, LogReader
from headgate.services.coordinator.putting_back import put_back
from headgate.services.coordinator.term import Term
from headgate.telemetry import LogLine

log = structlog.get_logger()

MAX_BODY_BYTES = 64 * 1024
NOTED_AT_ONCE = 64
POSITIONS_MAX = 65_536
"""Targets times partitions of a group that is reset in one call."""


class GroupRoutes:
    """`term` raises NotNow where another coordinator leads."""

    def __init__(
        self, term: Callable[[], Term], checkpoints: CheckpointStore, reader: LogReader
    ) -> None:
        self._term = term
        self._checkpoints = checkpoints
        self._reader = reader

    def table(self) -> list[Route]:
        one = "/v1/groups/{name}/{group}"
        return [
            Route("GET", "/v1/groups", self._list),
            Route("GET", one, self._describe),
            Route("POST", f"{one}/reset", self._reset),
        ]

    async def _list(self, _request: Request) -> Response:
        return json_response(GroupList(describe_groups(self._term().cluster)))

    # --- one of them -----------------------------------------------------------------------------

    async def _describe(self, request: Request) -> Response:
        term = self._term()
        group = self._found(term, request)
        extents = await self._extents(term, group)
        here = {number: extent.head for number, extent in extents.items()}
        positions = await self._checkpoints.of_group(group.id)
        group = self._found(term, request)  # its topic may be deleted by now
        planned = regrouping.plan(group, positions, here)
        status = next(
            one
            for one in describe_groups(term.cluster)
            if (one.topic, one.group) == (group.topic, group.name)
        )
        return json_response(
            GroupInfo(
                group.topic,
                group.name,
                group.where,
                _targets(term.cluster, group),
                status.consumers,
                [
                    GroupPartition(one.partition, one.to, one.lowest, one.highest, one.skips_max)
                    for one in planned
                ],
            )
        )

    def _found(self, term: Term, request: Request) -> Group:
        """Raises NotFound."""
        name = group_id(request.params["name"], request.params["group"])
        if name not in term.cluster.groups.by_id:
            error = regrouping.refusal(term.cluster, name)
            assert error is not None, "it isn't there"
            raise error
        return term.cluster.groups.by_id[name]

    async def _extents(self, term: Term, group: Group) -> dict[int, Extent]:
        topic = term.cluster.topics.get(group.topic)
        refs = [] if topic is None else topic.all_refs()
        found = await asyncio.gather(*(self._reader.extent(ref) for ref in refs))
        return {ref.partition: one for ref, one in zip(refs, found, strict=True)}

    # --- elsewhere -------------------------------------------------------------------------------

    async def _reset(self, request: Request) -> Response:
        """Put the positions of a group elsewhere; answers when its owners are told."""
        term = self._term()
        body = await request.decode(ResetGroup, MAX_BODY_BYTES)
        if (learning := operating.learning_refusal(term.cluster)) is not None:
            raise learning
        group = self._found(term, request)
        extents = await self._extents(term, group)
        if group.targets * len(extents) > POSITIONS_MAX:
            raise InvalidRequest(
                f"group {group.name} has {group.targets} targets in {len(extents)} partitions, "
                f"more positions than the {POSITIONS_MAX:,} that are reset at a time"
            )
        wanted = await self._wanted(group, body.to, extents)
        if (error := regrouping.refusal(term.cluster, group.id, wanted)) is not None:
            raise error
        wanted = regrouping.in_order(term.cluster.topics[group.topic], wanted)
        positions = await self._checkpoints.of_group(group.id)
        planned = regrouping.plan(group, positions, wanted)
        if not body.dry_run:
            heads = {number: extent.head for number, extent in extents.items()}
            noting = _Noting(self._checkpoints, positions, term.cluster.groups.epochs(group))
            await noting.note(regrouping.wishes(group, positions, wanted, heads))
            await term.apply(lambda _: term.cluster.regroup(group.id, wanted.keys()))
            log.warning(LogLine.GROUP_RESET, group=group.id, to=body.to)
        return json_response(
            GroupReset(group.topic, group.name, [*map(_described, planned)], body.dry_run)
        )

    async def _wanted(self, group: Group, to: str, extents: Mapping[int, Extent]) -> dict[int, int]:
        """By partition the seq after which the group begins."""
        if to == "latest":
            return {number: extent.head for number, extent in extents.items()}
        if to == "earliest":
            return {number: extent.earliest - 1 for number, extent in extents.items()}
        start = parse_start(to) if to[:4].isdigit() else None
        if not isinstance(start, Since):
            raise InvalidRequest(
                f"{to[:100]!r} is neither earliest, latest nor a time such as 2026-01-31T12:00:00Z",
                parameter="to",
            )
        firsts = await asyncio.gather(
            *(
                self._reader.first_since(PartitionRef(group.topic, number), start.time_ms)
                for number in extents
            )
        )
        return {
            number: max(first, extents[number].earliest) - 1
            for number, first in zip(extents, firsts, strict=True)
        }


@dataclass(frozen=True, slots=True)
class _Noting:
    """`claimed` are the positions that owners have claimed, `epochs` those of the targets by
    name."""

    checkpoints: CheckpointStore
    claimed: Container[PartitionRef]
    epochs: Mapping[str, int]

    async def note(self, wishes: Sequence[Wish]) -> None:
        for begin in range(0, len(wishes), NOTED_AT_ONCE):
            some = wishes[begin : begin + NOTED_AT_ONCE]
            await asyncio.gather(*map(self._noted, some))

    async def _noted(self, wish: Wish) -> None:
        if wish.goes_ahead:
            await self.checkpoints.put_ahead(wish.ref, wish.to)
            return
        await put_back(
            self.checkpoints,
            wish.ref,
            wish.to,
            wish.until,
            claimed=self.claimed,
            epoch=self.epochs.get(wish.ref.topic, 0),
            instead=True,
        )


def _targets(state: State, group: Group) -> list[GroupTarget]:
    groups = state.groups
    gateways = {one.id: one.gateway_id for one in groups.of_group(group.id)}
    found: list[GroupTarget] = []
    for ref in group.refs():
        owner, handoff = groups.targets.owners.get(ref), groups.handoffs.by_ref.get(ref)
        consumer = "" if owner is None else owner.node_id
        found.append(
            GroupTarget(
                ref.partition,
                consumer,
                gateways.get(consumer, ""),
                0 if owner is None else owner.epoch,
                "" if handoff is None else handoff.move.to_id,
            )
        )
    return found


def _described(one: PlannedPartition) -> GroupPartitionReset:
    return GroupPartitionReset(
        one.partition, one.to + 1, one.lowest, one.highest, one.repeats_max, one.skips_max
    )
