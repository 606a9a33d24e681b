"""What a producer sends to one topic: a queue per node, one request under way in each.

Invariant: the events of a key reach the log in the order of the calls. Under one route a key has
one node, and so one queue. When partitions get other owners, nothing of them leaves until every
request under way that has something of them has ended; when the topic has other partitions, nothing
of the topic, until every request has. Then what waited is queued anew, oldest first. What a request
leaves behind for a retry stands before everything that came later.

A partition that refuses events while its node takes those of others is set aside: what waits for it
stands in a queue of its own until it takes something, and nobody else waits. So one that is between
two owners holds its own keys, and not those of the topic.

On an opportunistic topic, where nothing has an order, an event's id leads to its node, and a
request of unknown outcome gets a queue of its own: it is sent again as it was, to the node that may
have it, or to the one that took that one's place, and nothing waits behind it.

Every loop here ends at the events' deadline: nothing is sent after that, and nothing that has an
outcome. No mistake in here leaves an event without one: the task that fails settles what it had in
hand, and the producer what was forgotten all the same (see calls.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from headgate import errors
from headgate.client.outages import Outages
from headgate.client.producing.calls import overdue
from headgate.client.producing.exchange import Answers, Attempt, about_the_call, may_retry
from headgate.client.producing.outgoing import Outcome, Receipt
from headgate.client.producing.pending import Doubt, Pending, ProducerOptions, failed, settle_all
from headgate.client.producing.route import Route
from headgate.client.producing.setbacks import Setbacks
from headgate.decide.produce import routing_cache
from headgate.decide.produce.placement import partition_of
from headgate.decide.produce.routing_cache import TopicRoute
from headgate.ports.machine import Machine
from headgate.tasks import Crew

TOLD_AFTER_S = 1.0
"""Without any event that was taken; a handoff is over by then."""


@dataclass(frozen=True, slots=True)
class Aside:
    """Where the partitions wait that are set aside and belong to the node at `url`."""

    url: str


Way = str | Doubt | Aside
"""The address of a node, or that of a request which only one node knows."""


class _Refused(Exception):
    """A request with the events of `batch` was refused, and none of them is written by it."""

    def __init__(self, error: errors.HeadgateError, batch: Sequence[Pending]) -> None:
        super().__init__(error)
        self.batch = batch
        self.may_be_anothers = isinstance(error, errors.InvalidRequest | errors.TooLarge)
        self.error = about_the_call(error, batch)
        index = error.details.get("index")
        self._named: Pending | None = None
        if isinstance(index, int) and 0 <= index < len(batch):
            self._named = batch[index]

    def is_about(self, pending: Pending) -> bool:
        """Whether it would be refused by itself, too."""
        return not self.may_be_anothers or len(self.batch) == 1 or pending is self._named


class _Queue:
    """What waits for one node, a request of unknown outcome, or partitions that are set aside.
    `ready` is set when there is no reason to linger; `under_way` is what is sent just now, and
    `ended` whether that has ended."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.waiting: deque[Pending] = deque()
        self.under_way: Sequence[Pending] = ()
        self.ended: asyncio.Future[None] | None = None
        self.ready = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class TopicStream:
    """`idle` is told when nothing is left."""

    def __init__(
        self,
        topic: str,
        route: Route,
        options: ProducerOptions,
        *,
        machine: Machine,
        idle: Callable[[], object],
    ) -> None:
        self.topic = topic
        self._route = route
        self._options = options
        self._machine = machine
        self._idle = idle
        self._known: TopicRoute | None = None
        self._is_routed = False
        self._queues: dict[Way, _Queue] = {}
        self._held: list[Pending] = []
        self._crew = Crew("producer")
        self._setbacks = Setbacks(options, machine)
        self._outages = Outages(f"producer of {topic}", after_s=TOLD_AFTER_S)
        self._outages_aside = Outages(f"producer of {topic}, some keys", after_s=TOLD_AFTER_S)
        self._rerouting: asyncio.Task[None] | None = None
        self._moving: dict[int, object] = {}
        """Partitions that have another owner, of which nothing leaves yet, and who waits for it."""
        self._moves: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        """Set when the route has changed since this was made."""
        self._hurried = False

    # --- from the producer -----------------------------------------------------------------------

    def add(self, pending: Pending) -> None:
        self._look_at_route()
        if self._is_held_back(pending):
            self._held.append(pending)
        else:
            self._place(pending)

    def hurry(self) -> None:
        """Linger no more."""
        self._hurried = True
        for queue in self._queues.values():
            queue.ready.set()

    def tasks(self) -> list[asyncio.Task[None]]:
        tasks = [*(queue.task for queue in self._queues.values()), *self._moves, self._rerouting]
        return [task for task in tasks if task is not None and not task.done()]

    def abandon(self) -> None:
        """Send nothing more: everything here has its outcome."""
        for task in self.tasks():
            task.cancel()

    # --- the route -------------------------------------------------------------------------------

    def _is_outdated(self) -> bool:
        return not self._is_routed or self._known is not self._route.topic(self.topic)

    def _is_held_back(self, pending: Pending) -> bool:
        """Whether it must not leave, nor be queued, for now."""
        if self._rerouting is not None:
            return True
        return bool(self._moving) and self._partition(pending) in self._moving

    def _look_at_route(self) -> None:
        """Go by the present one from now on."""
        if self._rerouting is not None or not self._is_outdated():
            return
        known = self._route.topic(self.topic)
        if self._is_routed and _has_same_partitions(self._known, known):
            assert self._known is not None
            assert known is not None
            owners = zip(self._known.owners, known.owners, strict=True)
            moved = {number for number, (former, now) in enumerate(owners) if former != now}
            self._known = known
            if moved := moved - self._moving.keys():
                self._move_to_owners(moved)
        else:
            self._rerouting = self._crew.start("route", self._queue_anew(), about=self.topic)
        self._changed.set()
        self._changed = asyncio.Event()
        for queue in self._queues.values():
            queue.ready.set()

    def _move_to_owners(self, partitions: Collection[int]) -> None:
        """They have others now. What goes to the rest isn't held up."""
        mover = object()
        self._moving |= dict.fromkeys(partitions, mover)
        for queue in self._queues.values():
            self._held += self._taken_out(queue, partitions)
        under_way = [
            queue.ended
            for queue in self._queues.values()
            if queue.ended is not None
            and any(self._partition(one) in partitions for one in queue.under_way)
        ]
        move = self._crew.start("move", self._moved(mover, under_way), about=self.topic)
        self._moves.add(move)
        move.add_done_callback(self._move_ended)

    async def _moved(self, mover: object, under_way: Collection[asyncio.Future[None]]) -> None:
        try:
            if under_way:
                await asyncio.wait(under_way)
            self._place_moved(mover)
        except Exception as error:
            self._moving = {n: one for n, one in self._moving.items() if one is not mover}
            self._give_up(self._held, of=error)
            raise

    def _move_ended(self, move: asyncio.Task[None]) -> None:
        self._moves.discard(move)
        self._end_if_idle()

    def _place_moved(self, mover: object) -> None:
        partitions = {number for number, one in self._moving.items() if one is mover}
        held, self._held = self._held, []
        for number in partitions:
            del self._moving[number]
        for pending in sorted(held, key=lambda pending: pending.number):
            self.add(pending)

    async def _queue_anew(self) -> None:
        try:
            await self._route.learn(self.topic)
            under_way = [queue.task for queue in self._queues.values() if queue.task is not None]
            if under_way:
                await asyncio.wait(under_way)
            self._place_anew()
        except Exception as error:
            self._rerouting = None
            self._moving.clear()
            queues = list(self._queues.values())
            for queue in queues:
                if queue.task is None or queue.task.done():
                    del self._queues[queue.way]
            self._give_up(self._held, *(queue.waiting for queue in queues), of=error)
            raise

    def _place_anew(self) -> None:
        # Without a pause from here on: nobody may add to a queue that is given up.
        waiting = [*self._held, *(p for queue in self._queues.values() for p in queue.waiting)]
        self._held = sorted(waiting, key=lambda pending: pending.number)
        self._queues.clear()
        self._rerouting = None
        self._moving.clear()
        self._is_routed = True
        former, self._known = self._known, self._route.topic(self.topic)
        if self._setbacks and not _has_same_partitions(former, self._known):
            self._setbacks.move((self._partition(one), one) for one in self._held)
        for pending in self._held:
            self._place(pending)
        self._held.clear()
        self._end_if_idle()

    def _place(self, pending: Pending) -> None:
        way = self._way(pending)
        queue = self._queues.get(way)
        if queue is None:
            queue = self._queues[way] = _Queue(way)
        queue.waiting.append(pending)
        if self._hurried or len(queue.waiting) >= self._options.batch_events:
            queue.ready.set()
        if queue.task is None:
            queue.task = self._crew.start("requests", self._send(queue), about=self.topic)

    def _way(self, pending: Pending) -> Way:
        doubt = self._doubt(pending)
        if doubt is None:
            url = self._target(pending)
            return Aside(url) if self._is_set_aside(pending) else url
        # While nobody knows what the topic is, it may have keys, which must not be overtaken.
        return doubt if self._known is not None else doubt.url

    def _doubt(self, pending: Pending) -> Doubt | None:
        """The request that `pending` must be sent in. A key is stronger: it leads to the right node
        by itself, and two ways for one key would let its events overtake each other."""
        return None if pending.doubt is None or self._is_keyed else pending.doubt

    @property
    def _is_keyed(self) -> bool:
        return self._known is not None and self._known.placement == "keyed"

    def _is_set_aside(self, pending: Pending) -> bool:
        return bool(self._setbacks) and self._partition(pending) in self._setbacks

    def _partition(self, pending: Pending) -> int | None:
        """By the route under which it is queued; None where that has none for it."""
        if self._known is None or not self._is_keyed:
            return None
        collection = pending.event.collection
        count = self._known.partitions
        return partition_of(pending.routing_key, collection=collection, count=count)

    def _target(self, pending: Pending) -> str:
        return routing_cache.route(
            self._route.cache,
            self.topic,
            key=pending.routing_key,
            collection=pending.event.collection,
        ).url

    # --- requests --------------------------------------------------------------------------------

    async def _send(self, queue: _Queue) -> None:
        """Sends a queue's batches, one after the other, until nothing waits or the way changes."""
        try:
            await self._send_all(queue)
        except Exception as error:
            self._queues.pop(queue.way, None)
            self._give_up(queue.waiting, of=error)
            raise

    async def _send_all(self, queue: _Queue) -> None:
        while queue.waiting:
            self._route.refresh(self.topic)
            if isinstance(queue.way, Aside):
                await self._rest(queue)
            else:
                await self._linger(queue)
            self._look_at_route()
            if self._rerouting is not None:
                return
            if queue.waiting:
                await self._send_some(queue)
        del self._queues[queue.way]
        self._end_if_idle()

    async def _send_some(self, queue: _Queue) -> None:
        batch = queue.under_way = self._take(queue)
        queue.ended = asyncio.get_running_loop().create_future()
        try:
            try:
                left = await self._deliver(queue.way, batch)
            except Exception as error:  # noqa: BLE001  # callers must not wait for ever
                settle_all(batch, failed(error))
                return
            self._put_back(queue, left)
            if isinstance(queue.way, Aside):
                self._let_back(queue, batch, left)
            elif left and self._setbacks:
                self._set_aside(queue, left)
        finally:
            queue.under_way = ()
            queue.ended.cancel()  # which tasks that wait for it hear

    def _put_back(self, queue: _Queue, left: Sequence[Pending]) -> None:
        """What must be sent again stands first here, unless it has another way by now."""
        stays = []
        for pending in left:
            if self._strays(pending, queue.way) or self._is_held_back(pending):
                self.add(pending)
            else:
                stays.append(pending)
        queue.waiting.extendleft(reversed(stays))

    def _set_aside(self, queue: _Queue, left: Sequence[Pending]) -> None:
        """What waits in a node's queue for partitions that have just refused something."""
        self._move(queue, {self._partition(one) for one in left if self._is_set_aside(one)})
        for other in self._queues.values():
            if isinstance(other.way, Aside):
                other.ready.set()  # these may be asked before those that were there

    def _let_back(self, queue: _Queue, batch: Sequence[Pending], left: Sequence[Pending]) -> None:
        """What waits for partitions that have refused nothing of `batch`."""
        taken = {self._partition(one) for one in batch} - {self._partition(one) for one in left}
        self._setbacks.end(taken)
        self._move(queue, taken)

    def _move(self, queue: _Queue, partitions: Collection[int | None]) -> None:
        """Queue the waiting events of these partitions where they belong now. All of them, so that
        none overtakes another one of its key."""
        for pending in self._taken_out(queue, partitions):
            self.add(pending)

    def _taken_out(self, queue: _Queue, partitions: Collection[int | None]) -> list[Pending]:
        taken = [one for one in queue.waiting if self._partition(one) in partitions]
        if taken:
            left = [one for one in queue.waiting if self._partition(one) not in partitions]
            queue.waiting = deque(left)
        return taken

    def _strays(self, pending: Pending, way: Way) -> bool:
        """Whether it has a way of its own since it was sent on `way`."""
        doubt = self._doubt(pending)
        return doubt is not None and self._known is not None and doubt is not way

    def _give_up(self, *waiting: MutableSequence[Pending], of: Exception) -> None:
        """Callers must not wait for ever."""
        for pending in waiting:
            settle_all(pending, failed(of))
            pending.clear()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not (self._queues or self._held or self._moves) and self._rerouting is None:
            self._idle()

    async def _linger(self, queue: _Queue) -> None:
        """Give a batch that isn't full a moment to grow, counted from its first event."""
        rest_s = queue.waiting[0].arrived_s + self._options.linger_s - _now_s()
        if rest_s <= 0 or self._hurried or len(queue.waiting) >= self._options.batch_events:
            return
        queue.ready.clear()
        try:
            async with asyncio.timeout(rest_s):
                await queue.ready.wait()
        except TimeoutError:
            return

    async def _rest(self, queue: _Queue) -> None:
        """Until some partition that is set aside may be asked, or what waits is queued anew."""
        while self._rerouting is None and queue.waiting:
            rest_s = min(map(self._due_s, queue.waiting)) - _now_s()
            if rest_s <= 0:
                return
            queue.ready.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await queue.ready.wait()

    def _due_s(self, pending: Pending) -> float:
        return self._setbacks.due_s(self._partition(pending))

    def _take(self, queue: _Queue) -> list[Pending]:
        now_s = _now_s()
        is_aside = isinstance(queue.way, Aside)
        if is_aside:
            queue.waiting = deque(sorted(queue.waiting, key=lambda one: self._due_s(one) > now_s))
        batch: list[Pending] = []
        size_bytes = 0
        while queue.waiting and len(batch) < self._options.batch_events:
            if is_aside and self._due_s(queue.waiting[0]) > now_s:
                break
            size_bytes += queue.waiting[0].size_bytes
            if batch and size_bytes > self._options.batch_bytes:
                break
            batch.append(queue.waiting.popleft())
        return batch

    async def _deliver(self, way: Way, batch: Sequence[Pending]) -> list[Pending]:
        """Send `batch` in one request, each call's part alone where one of them is at fault.

        Returns what must be sent another way, in order.
        """
        try:
            return await self._persist(way, batch)
        except _Refused as refused:
            left = [pending for pending in refused.batch if not pending.is_settled]
            parts = [list(part) for _, part in groupby(left, key=lambda pending: pending.call)]
            if len(parts) == 1 or not refused.may_be_anothers:
                for pending in left:
                    pending.settle(refused.error, is_about_it=refused.is_about(pending))
                return []
        for at, part in enumerate(parts):
            left = await self._deliver(way, part)
            if left:
                return [*left, *(pending for later in parts[at + 1 :] for pending in later)]
        return []

    async def _persist(self, way: Way, batch: Sequence[Pending]) -> list[Pending]:
        """Try until every event has its outcome, its way changes, or the deadline has come.

        Raises _Refused for a request that was, as a whole.
        """
        backoff_s = self._options.backoff_first_s
        left = list(batch)
        while left := self._worth_sending(left):
            deadline_s = max(pending.call.deadline_s for pending in left)
            try:
                answers = await self._attempt(way, left, deadline_s)
            except errors.HeadgateError as error:
                raise _Refused(error, left) from error
            self._tell(way, answers.outcomes)
            sets_aside = self._is_keyed and (answers.are_of_each or isinstance(way, Aside))
            stays = [
                (pending, answer)
                for pending, answer in zip(left, answers.outcomes, strict=True)
                if self._stays(
                    pending,
                    answer,
                    self._setbacks.pause_s(pending) if sets_aside else backoff_s,
                    deadline_s,
                )
            ]
            left = [pending for pending, _ in stays]
            if sets_aside:
                self._set_back(stays)
                break
            if not left or self._is_called_back(way, left):
                break
            await self._pause(backoff_s, way, left)
            if self._is_called_back(way, left):
                break
            backoff_s = min(backoff_s * 2, self._options.backoff_max_s)
        return left

    def _set_back(self, refused: Sequence[tuple[Pending, Outcome]]) -> None:
        """But for events that were sent on, where the route has changed by that: they follow it at
        once, until that has happened so often that nodes seem to take each other for the owner.
        While a partition changes hands they do, until the slower of them has heard of it."""
        self._look_at_route()
        for pending, answer in refused:
            is_sent_on = isinstance(answer, errors.StaleVersion)
            follows = is_sent_on and self._is_held_back(pending)
            if follows and pending.hops <= self._options.hops:
                continue
            if (partition := self._partition(pending)) is not None:
                self._setbacks.add(partition, pending)

    def _is_called_back(self, way: Way, batch: Sequence[Pending]) -> bool:
        """Whether some of it has to go another way."""
        self._look_at_route()
        return any(self._strays(one, way) or self._is_held_back(one) for one in batch)

    async def _pause(self, at_most_s: float, way: Way, batch: Sequence[Pending]) -> None:
        """Or until some of `batch` has to go another way."""
        until_s = _now_s() + at_most_s * (0.5 + 0.5 * self._machine.jitter())
        while not self._is_called_back(way, batch):
            changed = self._changed
            try:
                async with asyncio.timeout_at(until_s):
                    await changed.wait()
            except TimeoutError:
                return

    def _tell(self, way: Way, answers: Sequence[Outcome]) -> None:
        """The user, of what takes unusually long."""
        outages = self._outages_aside if isinstance(way, Aside) else self._outages
        refused = next((one for one in answers if not isinstance(one, Receipt)), None)
        if refused is None:
            if outages.is_out:
                outages.back("events are taken again", _now_s())
        elif may_retry(refused):
            outages.lost("", refused.message, "sending again", _now_s())

    def _worth_sending(self, batch: Sequence[Pending]) -> list[Pending]:
        """The batch without events that no call waits for, and those whose time is over, which are
        told so.

        What is in doubt stays, so that its request is the same again, until all of it is over.
        """
        now_s = _now_s()
        wanted = [pending for pending in batch if pending.is_wanted(now_s)]
        if len(wanted) == len(batch):
            return wanted
        is_over = all(pending.call.deadline_s <= now_s for pending in batch)
        left = []
        for pending in batch:
            is_in_doubt = self._doubt(pending) is not None and not is_over
            if is_in_doubt or pending.is_wanted(now_s):
                left.append(pending)
            else:
                pending.settle(overdue(self._options.deadline_s))
        return left

    async def _attempt(self, way: Way, batch: Sequence[Pending], deadline_s: float) -> Answers:
        known = self._known
        # What may be under way on an opportunistic topic is known to that node; where it is gone,
        # the public address knows who takes its place.
        url = self._route.connections.usable(way if isinstance(way, str) else way.url)
        timeout_s = min(self._options.request_timeout_s, max(0.05, deadline_s - _now_s()))
        attempt = Attempt(
            self.topic,
            url,
            version=known.version if known is not None and self._is_keyed and url else None,
            timeout_s=timeout_s,
        )
        answers = await attempt.run(self._route, batch)
        doubt = Doubt(url)
        for pending in batch:
            if pending.unknown and pending.doubt is None:
                pending.doubt = doubt
        return answers

    def _stays(self, pending: Pending, answer: Outcome, pause_s: float, deadline_s: float) -> bool:
        """Whether `pending` must be sent again, after `pause_s`; if not, it is settled.

        What is in doubt ends together with its request, at `deadline_s`.
        """
        if isinstance(answer, Receipt):
            pending.settle(answer)
            return False
        pending.asked = False
        end_s = pending.call.deadline_s if self._doubt(pending) is None else deadline_s
        last = end_s <= _now_s() + pause_s
        if isinstance(answer, errors.StaleVersion):
            pending.hops += 1
            if not last:
                return True
            answer = errors.NotNow(
                f"{self.topic} sent the event from node to node {pending.hops} times; try again",
                hops=pending.hops,
            )
        elif may_retry(answer) and not last:
            return True
        pending.settle(answer)
        return False


def _has_same_partitions(former: TopicRoute | None, now: TopicRoute | None) -> bool:
    if former is None or now is None:
        return False
    return (former.version, former.partitions) == (now.version, now.partitions)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
