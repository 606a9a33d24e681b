"""The consumers of this gateway, and its voice for them at the coordinator.

Invariants: the coordinator hears of every consumer that is connected here, again after every broken
stream, and of none that isn't; what consumers acknowledge is saved in batches, under the epoch of
its target. While the coordinator is away, consumers go on with what they own, for as long as the
store says that it is still theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial

import structlog

from headgate import errors
from headgate.decide.access.deciding import enforced
from headgate.decide.access.enforcing import joined
from headgate.decide.feed.start_positions import Start, since_then, start_of, starts_after
from headgate.decide.filter.plan import compile_filter
from headgate.decide.groups.tries import TriedInVain
from headgate.model.access import Principal
from headgate.model.control.from_coordinator import AssignTargets, LetGo, RefuseConsumer
from headgate.model.control.to_coordinator import JoinGroup, LeaveGroup, ToCoordinator
from headgate.model.groups import Group, group_id, is_target
from headgate.model.letters import Letter
from headgate.model.topology import Owner
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.machine import Machine
from headgate.services.gateway.control import Control
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.consumer import GroupConsumer
from headgate.services.gateway.groups.handing_out import Sink
from headgate.services.gateway.groups.letters import GroupLetters
from headgate.services.gateway.groups.protocol import Join
from headgate.services.gateway.groups.target import Target
from headgate.services.gateway.subscriptions.requests import where_in
from headgate.services.gateway.subscriptions.subscriptions import Subscriptions
from headgate.telemetry import LogLine

log = structlog.get_logger()

CLAIMANT_BYTES = 8
LOOK_EVERY_S = 1.0
"""For what an operator wants sent again: the command waits twice as long."""
KEEP_TRIES_S = 3_600.0
"""For a group without consumers here to be forgotten."""
WITHOUT_DOCUMENT = "its document is lost, so nobody can be handed it: delete it"
EXCLUDED = "the grants of the group's consumers exclude it, so nobody can be handed it"
LOOK_PAGES = 10
"""Of letters that are looked at each time: where there are more, the next look goes on."""

Key = tuple[str, str, str]
"""Group id, consumer and incarnation."""
_ERRORS: dict[str, type[errors.HeadgateError]] = {
    kind.code: kind
    for kind in (errors.UnknownTopic, errors.NotNow, errors.TooLarge, errors.InvalidRequest)
}


class Consumers:
    """Implements hearing.Groups."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        control: Control,
        checkpoints: CheckpointStore,
        bounds: ConsumerBounds,
        letters: GroupLetters | None = None,
        *,
        machine: Machine,
    ) -> None:
        self._subscriptions = subscriptions
        self._control = control
        self._checkpoints = checkpoints
        self._bounds = bounds
        self._machine = machine
        self._letters = letters
        """Where groups give up what fails; None: they don't."""
        self._tried_again: dict[str, tuple[TriedInVain, float]] = {}
        """Of redeliveries, by group, and when it last had a consumer here."""
        self._looked: dict[str, int] = {}
        """By group, up to which id its letters were looked at, where there are more."""
        self.crew = subscriptions.crew
        self._table: dict[Key, GroupConsumer] = {}

    def __len__(self) -> int:
        return len(self._table)

    # --- consumers -------------------------------------------------------------------------------

    async def join(self, request: Join, sink: Sink, entry: Entry | None = None) -> GroupConsumer:
        """Returns when the coordinator has taken the consumer in, and it was told so; targets come
        as they do. A grant's filter becomes a part of the group's: a consumer with another one
        can't join, because all consumers of a group see the same. However many targets it has, it
        counts as one subscription, for as long as its connection lasts."""
        entry = entry or Entry()
        principal = entry.principal
        where = self._where_of(request, principal)
        entry.subscribe(compile_filter(where).cost_us)
        asked = await self._asked(request, principal, where)
        consumer = GroupConsumer(
            asked,
            sink,
            bounds=self._bounds,
            tell=self._control.send,
            make_target=partial(self._target, principal),
            crew=self.crew,
            max_deliveries=request.max_deliveries,
            at_work=request.at_work,
            principal=principal,
        )
        await self._replace(consumer)
        self._table[_key(asked)] = consumer
        try:
            async with asyncio.timeout(self._bounds.join_s):
                await self._control.send(asked)
                await consumer.joined
                return consumer
        except TimeoutError as error:
            await self.gone(consumer)
            raise errors.Timeout(
                f"the coordinator gave no answer within {self._bounds.join_s:g} s; try again"
            ) from error
        except asyncio.CancelledError:
            await self.gone(consumer)
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise errors.NotNow("this consumer was ended before it had joined") from None
            raise
        except BaseException:
            await self.gone(consumer)
            raise

    def _where_of(self, request: Join, principal: Principal | None) -> str | None:
        limit = enforced(principal, "consume", topic=request.topic, group=request.group)
        if request.max_deliveries and self._letters is None:
            raise errors.InvalidRequest(
                "max_deliveries needs dead letters, and this cluster keeps none "
                "(routing.dlq.enabled): leave it out"
            )
        return joined(limit, where_in(request.where, request.filter))

    async def _asked(
        self, request: Join, principal: Principal | None, where: str | None
    ) -> JoinGroup:
        topic = await self._subscriptions.topic(request.topic, principal)
        wanted = await self._subscriptions.found(self._start_of(request), topic)
        extents = await self._subscriptions.extents(topic)
        start = since_then(wanted, topic, extents)
        starts = starts_after(start, extents, topic.name)
        if isinstance(start, dict):  # what is gone of that is told to its targets' owners
            starts |= {number: seq - 1 for number, seq in start.items()}
        return JoinGroup(
            topic=topic.name,
            group=request.group,
            consumer=request.consumer,
            incarnation=request.incarnation,
            keys=request.keys,
            where=where,
            starts=tuple(starts[number] for number in sorted(starts)),
            restricted=principal is not None,
        )

    def _start_of(self, request: Join) -> Start:
        """Where a new group begins. To one that is there it means nothing, also where the log has
        lost its history and ends before that; should the coordinator have forgotten the group, what
        it has no position for is not passed over."""
        start = start_of(request.from_)
        name = group_id(request.topic, request.group)
        is_there = any(group.id == name for group in self._control.topology.groups)
        return "earliest" if is_there else start

    async def _replace(self, consumer: GroupConsumer) -> None:
        """The same process is back before its former connection was found to be broken, or has
        ended; once this returns there is none. Nobody else takes a consumer's place by its name."""
        while (former := self._table.get(_key(consumer.request))) is not None:
            if _who(former.principal) != _who(consumer.principal):
                raise errors.NotNow(
                    f"another principal is {consumer.request.consumer} already; choose another "
                    "name for this consumer, or try again"
                )
            try:
                await self.gone(former)
            finally:
                former.sink.fail(errors.NotNow("this consumer has connected again"))

    async def gone(self, consumer: GroupConsumer, *, failed: bool = False) -> None:
        """The consumer left, or its connection broke (`failed`: with items in hand). Returns when
        the coordinator was told. It is gone for good only if it said so itself. It ends once,
        however many say so, and to the end: the caller that waits for it here may be cancelled."""
        if self._table.get(_key(consumer.request)) is not consumer:
            return
        if consumer.ending is None:
            work = self._end(consumer, failed=failed)
            consumer.ending = self.crew.start("end of a consumer", work)
        await asyncio.shield(consumer.ending)

    async def _end(self, consumer: GroupConsumer, *, failed: bool) -> None:
        key = _key(consumer.request)
        try:
            await consumer.end(failed=failed)
            await self._control.send(LeaveGroup(*key, consumer.sink.has_left))
        finally:
            del self._table[key]

    def _target(self, principal: Principal | None, group: Group, owner: Owner) -> Target:
        return Target(
            group,
            owner,
            principal=principal,
            subscriptions=self._subscriptions,
            checkpoints=self._checkpoints,
            prefetch=self._bounds.prefetch,
            unsure_s=self._bounds.unsure_s,
            claimant=self._machine.token(CLAIMANT_BYTES),
            letters=self._letters,
            tried_again=self._tried_again_of(group),
        )

    def _tried_again_of(self, group: Group) -> TriedInVain | None:
        if self._letters is None:
            return None
        tried, _ = self._tried_again.get(group.id, (TriedInVain(), 0.0))
        self._tried_again[group.id] = tried, asyncio.get_running_loop().time()
        return tried

    # --- the coordinator -------------------------------------------------------------------------

    def announcements(self) -> list[ToCoordinator]:
        """All consumers that are here, for a coordinator that may not know them."""
        return [self._announcement(one) for one in self._table.values() if not one.ended]

    def _announcement(self, consumer: GroupConsumer) -> JoinGroup:
        asked = consumer.request
        return JoinGroup(
            topic=asked.topic,
            group=asked.group,
            consumer=asked.consumer,
            incarnation=asked.incarnation,
            keys=asked.keys,
            where=asked.where,
            starts=asked.starts,
            known=consumer.group,
            owns=consumer.owned(),
            restricted=asked.restricted,
        )

    def heard(self, message: AssignTargets | RefuseConsumer | LetGo) -> None:
        match message:
            case AssignTargets(group, consumer_id, incarnation, owners):
                consumer = self._table.get((group.id, consumer_id, incarnation))
                if consumer is not None:
                    consumer.assigned(group, owners)
            case RefuseConsumer(name, consumer_id, incarnation, code, reason):
                consumer = self._table.get((name, consumer_id, incarnation))
                if consumer is not None:
                    _refuse(consumer, _ERRORS.get(code, errors.InvalidRequest)(reason))
            case LetGo(owners):
                for consumer in self._table.values():
                    mine = set(consumer.owned())
                    consumer.let_go([o for o in owners if is_target(o.ref) and o in mine])

    # --- saving ----------------------------------------------------------------------------------

    async def keep_saving(self) -> None:
        while True:
            await asyncio.sleep(self._bounds.save_s)
            await self.save_all()

    async def save_all(self) -> None:
        work: list[Awaitable[object]] = []
        is_there = self._control.is_there(within_s=self._bounds.noticed_s)
        for consumer in self._table.values():
            for target in consumer.targets():
                if is_there:
                    consumer.confirm(target, self._control.heard_s)
                if not target.is_saved:
                    work.append(consumer.save(target))
                elif not is_there or not target.is_sure:
                    work.append(consumer.check(target))
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error(LogLine.UNEXPECTED, error=str(outcome))

    # --- what groups gave up ---------------------------------------------------------------------

    async def keep_sending_again(self) -> None:
        """Look now and then for letters that an operator wants the groups here to get again."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for group in self._groups_here():
                try:
                    await self._send_again(group)
                except errors.HeadgateError as error:
                    log.warning(LogLine.LETTERS_FAILED, group=group.id, error=error.message)

    def _groups_here(self) -> list[Group]:
        groups = {one.group.id: one.group for one in self._table.values() if one.group is not None}
        for group in groups.values():
            self._tried_again_of(group)
        now_s = asyncio.get_running_loop().time()
        for name, (_, seen_s) in list(self._tried_again.items()):
            if now_s - seen_s > KEEP_TRIES_S:
                del self._tried_again[name]
        self._looked = {name: id_ for name, id_ in self._looked.items() if name in groups}
        return list(groups.values())

    async def _send_again(self, group: Group) -> None:
        assert self._letters is not None, "groups without letters have none"
        for _ in range(LOOK_PAGES):
            after_id = self._looked.pop(group.id, 0)
            letters = await self._letters.wanted(group, after_id=after_id)
            targets = self._targets_of(group)
            for letter in letters:
                try:
                    await self._send_one_again(letter, targets.get(letter.gateway_id), group)
                except errors.HeadgateError as error:  # the next look comes to it again
                    log.warning(LogLine.LETTERS_FAILED, group=group.id, error=error.message)
            if not letters:
                return
            self._looked[group.id] = letters[-1].id

    async def _send_one_again(self, letter: Letter, target: Target | None, group: Group) -> None:
        """`target` None: its owner isn't here, or there is no such target any more."""
        assert self._letters is not None, "it was found there"
        if target is not None and not letter.delivery.event_id:
            await target.bury_again(letter, WITHOUT_DOCUMENT)
        elif target is not None and not await target.may_see(letter):
            await target.bury_again(letter, EXCLUDED)
        elif target is not None:
            target.send_again(letter)
        elif not group.has_target(letter.gateway_id):
            await self._letters.bury_stranded(letter, error=_nobodys(letter, group))

    def targets_by_subscription(self) -> dict[str, Target]:
        """Those that are here and open."""
        return {
            target.subscription_id: target
            for consumer in self._table.values()
            for target in consumer.targets()
            if target.is_open
        }

    def _targets_of(self, group: Group) -> dict[str, Target]:
        """The targets of `group` that are here, by their names."""
        return {
            group.target_name(target.number): target
            for consumer in self._table.values()
            if consumer.group == group and not consumer.ended
            for target in consumer.targets()
        }

    async def stop(self, timeout_s: float) -> None:
        """Save what is processed; the consumers find another gateway."""
        leaving = [
            self.crew.start("leaving", self.gone(one)) for one in tuple(self._table.values())
        ]
        if leaving:
            await asyncio.wait(leaving, timeout=timeout_s)


def _nobodys(letter: Letter, group: Group) -> str:
    target = letter.gateway_id.rpartition("/")[2].replace("-of-", " of ")
    return (
        f"target {target} of group {group.name} gave it up, and the group has {group.targets} "
        "targets now, so nobody can be handed it: produce the event again"
    )


def _refuse(consumer: GroupConsumer, error: errors.HeadgateError) -> None:
    if consumer.joined.done():
        consumer.sink.fail(error)
    else:
        consumer.joined.set_exception(error)


def _who(principal: Principal | None) -> tuple[str, str] | None:
    """The same for all tokens of one name."""
    return None if principal is None else (principal.kind, principal.name)


def _key(asked: JoinGroup) -> Key:
    return group_id(asked.topic, asked.group), asked.consumer, asked.incarnation
