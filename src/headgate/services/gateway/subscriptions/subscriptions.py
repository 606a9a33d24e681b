"""The subscribers of this gateway, from the request to the end of the connection.

Invariants: whatever subscribes, a subscriber or a target of a consumer group, its grant's filter is
ANDed to its own here, before anybody matches with it, and nowhere else. Between the heads that are
taken before registering and the ends that are taken after every lane adopted the subscription
(log_ends.py), records come from the log; after those, from the lanes. So when `subscribe` returns,
nothing after `subscriber.starts` can be missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import structlog

from headgate import errors
from headgate.decide.access.deciding import enforced, knows_topic
from headgate.decide.access.enforcing import Enforced, joined
from headgate.decide.feed.feed import Feed, WhenSlow
from headgate.decide.feed.queue import Budget
from headgate.decide.feed.start_positions import Since, Start, gaps, since_then, starts_after
from headgate.decide.filter.plan import Filter, compile_filter
from headgate.decide.groups.targets import Shard
from headgate.decide.limits.holdings import GiveBack, Holdings, Most, Party
from headgate.decide.log.lineage import lineage_of
from headgate.decide.planning.gateway_ring import subscription_id
from headgate.metrics.roles import GatewayMetrics
from headgate.model.access import Principal
from headgate.model.subscription import Priority, Subscription
from headgate.model.topology import Topic, Topology
from headgate.ports.log import Extent, LogReader
from headgate.ports.machine import Machine
from headgate.services.gateway.control import Control
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.fences import Fences
from headgate.services.gateway.subscriptions.broadcast import Broadcasts
from headgate.services.gateway.subscriptions.catch_up import CatchUp
from headgate.services.gateway.subscriptions.live import Line, LiveSubscription, Totals
from headgate.services.gateway.subscriptions.log_ends import LogEnds, Positions
from headgate.services.gateway.subscriptions.placing import Placing
from headgate.services.gateway.subscriptions.registering import Registering
from headgate.services.gateway.subscriptions.restricted import RestrictedSubscription
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()

AIM_RETRY_S = 0.5
READ_LIMIT = 200
"""Records per read of a subscriber that catches up."""
QUEUE_BYTES = 8 * 1024 * 1024
"""Bytes that may wait for one subscriber, whatever their number."""


@dataclass(frozen=True, slots=True)
class SlowPolicies:
    """What happens to a subscriber whose queue is full, by the priority of its subscription."""

    high: WhenSlow = "park"
    normal: WhenSlow = "park"
    low: WhenSlow = "drop_oldest"

    def of(self, priority: Priority) -> WhenSlow:
        return {"high": self.high, "normal": self.normal, "low": self.low}[priority]


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """What a client wants to hear about; without a `name` the subscription is called by its id.

    With a `shard` it is one target of the consumer group `group`: never left behind, however slow.
    `subscriber` is the client's id, where subscribers are placed by that; `principal` is the
    client's, where clients need a credential, and `party` the name that it counts for.
    """

    topic: str
    where: str | None = None
    start: Start = "now"
    priority: Priority = "normal"
    name: str | None = None
    shard: Shard | None = None
    tenant: str = ""
    subscriber: str = ""
    principal: Principal | None = None
    group: str | None = None
    party: Party = field(default_factory=Party)


@dataclass(frozen=True, slots=True)
class Bounds:
    """`queue` is per subscriber, `memory_bytes` for what waits for all of them together, and
    `per_connection` bounds the subscriptions of one WebSocket connection."""

    queue: int = 1_000
    subscribers: int = 10_000
    per_connection: int = 1_000
    memory_bytes: int = 256 * 1024 * 1024
    when_slow: SlowPolicies = field(default_factory=SlowPolicies)
    subscribe_timeout_s: float = 15.0
    ttl_s: float = 0.0
    """How long the coordinator keeps a subscription without a sign of ours (0: for our lease)."""
    soft_delete: str = ""
    topic_grace_s: float = 1.0
    """How long a topic that was just created may take to become known here."""
    each: Most = field(default_factory=Most)
    """How much one principal, or one address, may have."""
    noticed_s: float = 8.0
    """After so long without a word of the coordinator, which is less than what it takes to forget a
    gateway, our subscriptions may have ended."""


class Subscriptions:
    """Implements hearing.Subscribers. `crew` does what is done for a subscriber or a consumer, and
    ends when it is done."""

    def __init__(
        self,
        node_id: str,
        bounds: Bounds,
        control: Control,
        registering: Registering,
        *,
        crew: Crew,
        reader: LogReader,
        settled: Callable[[], Awaitable[Positions]],
        metrics: GatewayMetrics,
        evidence: GatewayEvidence,
        machine: Machine,
    ) -> None:
        self._node_id = node_id
        self._control = control
        self._registering = registering
        self.crew = crew
        self.bounds = self._bounds = bounds
        self.budget = Budget(bounds.memory_bytes)
        self.holdings = Holdings(bounds.each)
        self._reader = reader
        self._ends = LogEnds(reader, settled, crew)
        self._metrics = metrics
        self._machine = machine
        self._table: dict[str, LiveSubscription] = {}
        self._counted: dict[str, GiveBack] = {}
        """By id, what stops counting it for its principal."""
        self._stopping = False
        self._returning: asyncio.Task[None] | None = None
        self._times_forgotten = 0
        self._is_alert = False
        """Whether the present silence of the coordinator is heeded."""
        self._forgotten: dict[str, LiveSubscription] = {}
        """Subscribers held since the coordinator forgot them, until the log has been looked at."""
        self.catch_up = CatchUp(
            reader,
            budget=self.budget,
            soft_delete=bounds.soft_delete,
            crew=self.crew,
            machine=machine,
        )
        self.totals = Totals(evidence)
        self.fences = Fences()
        self.broadcasts = Broadcasts(lambda: [one.subscription for one in self], machine)
        self.placing = Placing(node_id, lambda: control.topology, machine)

    @property
    def get(self) -> Callable[[str], LiveSubscription | None]:
        """The subscriber of an id, if it is here."""
        return self._table.get

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[LiveSubscription]:
        return iter(tuple(self._table.values()))

    @property
    def are_known(self) -> bool:
        """Does every lane match with those who are here and not held? The coordinator, which ends
        what nobody renews, has just heard of us."""
        return self._control.is_there(within_s=self._bounds.noticed_s)

    @property
    def held(self) -> int:
        """Subscribers that get nothing until it is sure that they miss nothing."""
        return len(self._forgotten)

    # --- the life of a subscription --------------------------------------------------------------

    async def subscribe(self, question: SubscribeRequest) -> LiveSubscription:
        """Returns when nothing can be missed any more; `begin` then starts the flow."""
        self._check_room()
        limit, tenant = limit_of(question), tenant_of(question)
        where = joined(limit, question.where)
        matches = compile_filter(where)
        give_back = self.holdings.subscribe(question.party, matches.cost_us)
        try:
            subscriber = await self._subscribe(question, limit, tenant, where, matches)
        except BaseException:
            give_back()
            raise
        self._counted[subscriber.id] = give_back
        return subscriber

    async def _subscribe(
        self,
        question: SubscribeRequest,
        limit: Enforced | None,
        tenant: str,
        where: str | None,
        matches: Filter,
    ) -> LiveSubscription:
        topic = await self.topic(question.topic, question.principal)
        wanted = await self.found(question.start, topic)
        extents = await self.extents(topic)
        start = since_then(wanted, topic, extents)
        if isinstance(start, dict) and not self.are_known and start.keys() - extents.keys():
            raise errors.NotNow(
                f"this gateway hears from no coordinator, and doesn't know all partitions of "
                f"{topic.name} that `from` names; try again, or at another gateway",
                topic=topic.name,
            )
        starts = starts_after(start, extents, topic.name)
        self._check_room()
        if topic.name in _deleted(self._control.topology):
            raise _deleted_topic(topic.name)  # while the log was looked at
        feed: Feed[bytes] = Feed(
            starts,
            capacity=self._bounds.queue,
            capacity_bytes=QUEUE_BYTES,
            read_limit=READ_LIMIT,
            when_slow="park" if question.shard else self._bounds.when_slow.of(question.priority),
            budget=self.budget,
            lineage=lineage_of(topic),
        )
        if isinstance(start, dict):
            for partition, (first, earliest) in gaps(start, extents).items():
                feed.resync(partition, first - 1, earliest)
        own_id = _new_id(question.subscriber, self._machine)
        ttl_ms = round(self._bounds.ttl_s * 1000)
        make: Callable[..., LiveSubscription] = LiveSubscription
        if limit is not None:
            make = partial(RestrictedSubscription, shown=limit.filter)
        subscriber = make(
            Subscription(
                own_id,
                self._node_id,
                topic.name,
                where,
                question.priority,
                tenant,
                ttl_ms=ttl_ms,
                shard=question.shard,
                cost_us=matches.cost_us,
            ),
            name=question.name or own_id,
            matches=matches,
            feed=feed,
            starts=starts,
            totals=self.totals,
            version=topic.version,
        )
        self._table[subscriber.id] = subscriber
        self._bring_up(subscriber)  # while the log was looked at
        self.broadcasts.came(subscriber.subscription)
        try:
            await self._adopt(subscriber, topic, begins_now=start == "now")
        except BaseException:
            await self.unsubscribe(subscriber)
            raise
        log.debug(LogLine.SUBSCRIBED, subscription=subscriber.id, topic=topic.name)
        return subscriber

    async def _adopt(self, subscriber: LiveSubscription, topic: Topic, *, begins_now: bool) -> None:
        asked_s = self._machine.monotonic_s()
        times_forgotten = -1
        while times_forgotten != self._times_forgotten:  # else no lane may know of it any more
            times_forgotten = self._times_forgotten
            await self._registering.register(
                subscriber.subscription, timeout_s=self._bounds.subscribe_timeout_s
            )
            # By now it may have more partitions, which lanes have read without this subscription.
            topic = self._control.topology.topic(topic.name) or topic
            ends = self._ends
            # A subscriber that begins now isn't owed what is settled.
            read_to = await (ends.heads(topic) if begins_now else ends.to_be_read(topic))
        self._metrics.adoption_wait.observe(self._machine.monotonic_s() - asked_s)
        if subscriber.closing is not None:
            raise subscriber.closing
        subscriber.feed.release(read_to)

    def begin(
        self, subscriber: LiveSubscription, ready: Callable[[], None], line: Line | None = None
    ) -> None:
        """The connection takes what there is; `ready` tells it when there may be more."""
        subscriber.connect(ready, line)
        self.catch_up.wake(subscriber)
        ready()

    async def unsubscribe(self, *subscribers: LiveSubscription) -> None:
        """Forget subscribers; doing it twice is fine."""
        ended: list[str] = []
        for subscriber in subscribers:
            subscriber.disconnect()
            subscriber.close(errors.NotNow("the subscription has ended"))
            self._forgotten.pop(subscriber.id, None)
            if (give_back := self._counted.pop(subscriber.id, None)) is not None:
                give_back()
            if self._table.pop(subscriber.id, None) is not None:
                ended.append(subscriber.id)
                self.broadcasts.went(subscriber.id)
                log.debug(LogLine.UNSUBSCRIBED, subscription=subscriber.id, topic=subscriber.topic)
        if ended:
            await self._registering.unregister(*ended)

    def stop_intake(self) -> None:
        """No subscriber may come any more, and nothing is read for them; waiting items are still
        sent."""
        self._stopping = True
        self.catch_up.stop()

    def close_all(self, reason: errors.HeadgateError) -> None:
        """The gateway stops: nobody may come, everybody is told."""
        self._stopping = True
        if self._returning is not None:
            self._returning.cancel()
        for subscriber in self:
            subscriber.close(reason, ends_connection=True)

    # --- what the coordinator tells --------------------------------------------------------------

    def apply(self, topology: Topology) -> None:
        """Only a topic that was deleted on purpose ends its subscriptions; one that is merely
        absent may be back with the next topology."""
        self.fences.raise_to(topology.sources)
        self._is_alert = False  # there may be another version to look at
        for subscriber in self:
            self._bring_up(subscriber)
        deleted = _deleted(topology)
        for subscriber in self:
            if subscriber.topic in deleted:
                subscriber.close(_deleted_topic(subscriber.topic))

    def _bring_up(self, subscriber: LiveSubscription) -> None:
        topic = self._control.topology.topic(subscriber.topic)
        if topic is not None:
            subscriber.repartitioned(topic)

    def heed_silence(self) -> None:
        """Where the coordinator may have given us up, lanes that hear it go on without our
        subscribers, and a lane that doesn't hear it delivers what comes behind that in other
        partitions. While somebody knows that all was well, that is where former versions end."""
        if self.are_known:
            self._is_alert = False
        elif not self._is_alert:
            self._is_alert = True
            for subscriber in self:
                subscriber.feed.read_former()
                self.catch_up.wake(subscriber)

    def refused(self, subscription_id: str, reason: errors.HeadgateError) -> None:
        subscriber = self._table.get(subscription_id)
        if subscriber is not None:
            subscriber.close(reason)

    def turned_away(self, reason: str) -> None:
        """Everybody is told to come again, where they find who is served instead of us."""
        for subscriber in self:
            subscriber.close(
                errors.NotNow(f"this gateway isn't served ({reason}); connect again"),
                ends_connection=True,
            )

    def forgotten(self) -> None:
        """Before anything is registered again: the first delivery after that must not hide what the
        lanes settled without us."""
        self._times_forgotten += 1
        if self._returning is not None:
            self._returning.cancel()  # what it would trust is over
        for subscriber in self:
            if not subscriber.feed.held:  # those that are wait for their first adoption
                subscriber.feed.hold()
                self._forgotten[subscriber.id] = subscriber

    def returned(self) -> None:
        """Records may have been released while we were away: the log still has them."""
        if self._returning is not None:
            self._returning.cancel()
        self._returning = self.crew.start("catching up after a return", self._aim_all())

    async def _aim_all(self) -> None:
        waiting = list(self._forgotten.values())
        try:
            while waiting:
                waiting = await self._aim(waiting)
                if waiting:
                    await asyncio.sleep(AIM_RETRY_S)
        except Exception:
            # A subscriber that comes again is better off than one that is held for ever.
            for subscriber in self._forgotten.values():
                subscriber.close(errors.NotNow("this subscription failed here; subscribe again"))
            self._forgotten.clear()
            raise

    async def _aim(self, subscribers: list[LiveSubscription]) -> list[LiveSubscription]:
        """Let each read the log up to its end; those whose topic can't be read now are left."""
        left: list[LiveSubscription] = []
        ends: dict[str, dict[int, int]] = {}
        for subscriber in subscribers:
            topic = self._control.topology.topic(subscriber.topic)
            if subscriber.closing is not None:
                self._forgotten.pop(subscriber.id, None)
                continue
            if topic is None:
                left.append(subscriber)
                continue
            try:
                if topic.name not in ends:
                    ends[topic.name] = await self._ends.to_be_read(topic)
            except errors.HeadgateError as error:
                log.warning(LogLine.CATCHING_UP, topic=topic.name, error=error.message)
                left.append(subscriber)
                continue
            self._forgotten.pop(subscriber.id, None)
            subscriber.feed.release(ends[topic.name])
            self.catch_up.wake(subscriber)
        return left

    # --- parts -----------------------------------------------------------------------------------

    def _check_room(self) -> None:
        if self._stopping:
            raise errors.NotNow("this gateway is stopping; connect again")
        if len(self._table) >= self._bounds.subscribers:
            raise errors.Overloaded(
                f"this gateway has {len(self._table)} subscribers, its most "
                "(gateway.max_subscribers); try again later"
            )

    async def topic(self, name: str, principal: Principal | None = None) -> Topic:
        """Raises UnknownTopic once it was waited for a moment, which names no topic that the
        principal may not know of."""
        return await self._control.topic(
            name,
            grace_s=self._bounds.topic_grace_s,
            is_shown=partial(knows_topic, principal),
        )

    async def found(self, start: Start, topic: Topic) -> Start:
        """`start` with the positions of a time, looked up before anybody asks where the log ends:
        it only grows."""
        if not isinstance(start, Since):
            return start
        refs = topic.all_refs()
        looks = (self._reader.first_since(ref, start.time_ms) for ref in refs)
        firsts = await asyncio.gather(*looks)
        return {ref.partition: seq for ref, seq in zip(refs, firsts, strict=True)}

    async def extents(self, topic: Topic) -> dict[int, Extent]:
        """What there is of each partition, also of those that nothing is appended to any more."""
        return await self._ends.extents(topic)


def limit_of(question: SubscribeRequest) -> Enforced | None:
    """What is added to its filter. Raises Unauthorized, and Forbidden."""
    topic, who = question.topic, question.principal
    if question.group is None:
        return enforced(who, "subscribe", topic=topic)
    return enforced(who, "consume", topic=topic, group=question.group)


def tenant_of(question: SubscribeRequest) -> str:
    """Whom it counts for: the principal says that, where there is one. Raises Forbidden."""
    who, named = question.principal, question.tenant
    if who is None:
        return named
    if named not in ("", who.tenant):
        raise errors.Forbidden(
            f"{who.name} isn't of tenant {named[:128]}; leave the tenant out", parameter="tenant"
        )
    return who.tenant


def _deleted(topology: Topology) -> set[str]:
    return {name for name in topology.deleted if topology.topic(name) is None}


def _deleted_topic(name: str) -> errors.UnknownTopic:
    return errors.UnknownTopic(f"topic {name} was deleted", topic=name)


def _new_id(subscriber_id: str, machine: Machine) -> str:
    """Never that of any other subscription, present or past: a connection that is lost and
    one that takes its place must not be confused."""
    if not subscriber_id:
        return machine.token(12)
    return subscription_id(subscriber_id, machine.token(6))
