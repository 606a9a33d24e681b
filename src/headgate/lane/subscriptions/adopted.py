"""The subscriptions a lane matches with, and since when.

What the coordinator sends is gathered (`hear`) and taken up beside the listening (`adopt`): while
one index is built, whatever comes is put together and makes one change, so many small changes never
keep a lane from its records, nor one large one from hearing that its window has ended.

Invariant: the index is swapped whole, between two reads; an older revision changes nothing, and a
snapshot counts only with its last part. For a subscription that came while the lane was reading it
is known how far the lane had read by then: a gateway that gets a record of it must look into the
log for earlier ones. Nothing that came before a hello is taken up after it: the coordinator that
answers it counts from what the hello said. Whatever is taken up was noted before, for a successor
that goes on when this process is dead and the coordinator away.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from headgate.decide.matching.index import MatchIndex
from headgate.model.control.from_coordinator import SubscriptionChanges, SubscriptionSnapshot
from headgate.model.event import PartitionRef
from headgate.model.subscription import Subscription
from headgate.ports.machine import Machine

Read = Mapping[PartitionRef, int]
"""How far each partition was read; empty while the lane hasn't begun to read."""

Note = Callable[[SubscriptionSnapshot | SubscriptionChanges], None]

LARGE = 20_000
"""From so many changes on, an index is built in a thread; after so many it is frozen."""
PAUSE_MAX_S = 0.25
"""Between two changes of the index the lane gets as long as the first one took, at most this."""


@dataclass(slots=True)
class _News:
    """What to make of the index: `wanted` has None for what has ended. A `whole` registry replaces
    all there was."""

    revision: int = 0
    wanted: dict[str, Subscription | None] = field(default_factory=dict)
    whole: bool = False

    @property
    def upserts(self) -> list[Subscription]:
        return [one for one in self.wanted.values() if one is not None]

    @property
    def removals(self) -> list[str]:
        return [name for name, one in self.wanted.items() if one is None]

    @property
    def message(self) -> SubscriptionSnapshot | SubscriptionChanges:
        if self.whole:
            return SubscriptionSnapshot(self.revision, tuple(self.upserts))
        return SubscriptionChanges(self.revision, tuple(self.upserts), tuple(self.removals))


class KeptIndex:
    """The newest index of a worker process, which outlives the lane that built it.

    A lane that starts is told all subscriptions, and nearly all of them are in here already: what
    differs is a patch, at a fifth of the time that a new index takes. Nothing depends on who told
    the former lane, or when: what comes out has what the snapshot has, and nothing else.
    """

    __slots__ = ("index",)

    def __init__(self) -> None:
        self.index = MatchIndex.empty()

    def turned_into(self, wanted: Mapping[str, Subscription | None]) -> MatchIndex:
        index = self.index  # another lane may put its own there meanwhile
        gone = [name for name in index.ids() if wanted.get(name) is None]
        upserts = (one for one in wanted.values() if one is not None)
        return index.patched(upserts, gone)


class Adopted:
    """`kept` shares the index with other lanes of the process; `note` writes down what is about to
    be taken up, and may be called in a thread."""

    def __init__(
        self,
        machine: Machine,
        *,
        large: int = LARGE,
        kept: KeptIndex | None = None,
        note: Note = lambda _: None,
    ) -> None:
        self._machine = machine
        self._kept = kept or KeptIndex()
        self._note = note
        self.index = MatchIndex.empty()
        self.revision = 0
        self._large = large
        self._late: dict[str, Read] = {}
        self._parts = _News()
        self._news = _News()
        self._heard = asyncio.Event()
        self._hellos = 0
        self._rests_until_s = 0.0
        self._unfrozen = 0

    def said_hello(self) -> None:
        """What came before that, and isn't taken up yet, will come again."""
        self._hellos += 1
        self._parts, self._news = _News(), _News()

    def hear(self, message: SubscriptionSnapshot | SubscriptionChanges) -> bool:
        """True when nothing follows from it, and the present revision is to be acknowledged."""
        if message.revision <= self.revision:
            return True
        match message:
            case SubscriptionSnapshot(revision, subscriptions, more):
                if self._parts.revision != revision:
                    self._parts = _News(revision, whole=True)
                self._parts.wanted.update(_by_id(subscriptions))
                if more:
                    return False
                self._news, self._parts = self._parts, _News()
            case SubscriptionChanges(revision, upserts, removals):
                self._news.revision = revision
                self._news.wanted.update(dict.fromkeys(removals))
                self._news.wanted.update(_by_id(upserts))
        self._heard.set()
        return False

    async def adopt(self, read: Callable[[], Read]) -> bool:
        """Wait for news and take them up; False when a hello came in between.

        `read` says how far the lane has read at the moment from which on the new index counts.
        """
        await self._heard.wait()
        await self._rest()
        hellos, news, self._news = self._hellos, self._news, _News()
        self._heard.clear()
        if news.revision <= self.revision:
            return bool(news.revision)
        began_s = _now_s()
        index = await self._built(news)
        if hellos != self._hellos:
            return False
        self._note_late(news, index, read())
        self.index, self.revision = index, news.revision
        self._kept.index = index
        self._freeze(len(news.wanted))
        ended_s = _now_s()
        self._rests_until_s = ended_s + min(ended_s - began_s, PAUSE_MAX_S)
        return True

    async def begin_with(self, revision: int, subscriptions: Iterable[Subscription]) -> None:
        """Begin with what others knew, when the coordinator is away and nothing was read yet."""
        news = _News(revision, dict(_by_id(subscriptions)), whole=True)
        self._kept.index = self.index = await self._built(news)
        self.revision = revision
        self._freeze(len(news.wanted))

    def forget(self) -> None:
        """Forget the subscriptions that the lane began with."""
        self.index, self.revision = MatchIndex.empty(), 0

    def since(self, ref: PartitionRef, subscriptions: tuple[str, ...]) -> tuple[int, ...]:
        """How far `ref` was read without each of `subscriptions`; empty when all were there."""
        late = self._late
        if not late or not any(s in late for s in subscriptions):
            return ()
        return tuple(late[s][ref] if s in late else 0 for s in subscriptions)

    # --- parts -----------------------------------------------------------------------------------

    async def _rest(self) -> None:
        if (rest_s := self._rests_until_s - _now_s()) > 0:
            await asyncio.sleep(rest_s)

    async def _built(self, news: _News) -> MatchIndex:
        if len(news.wanted) < self._large:
            return self._build(news)
        gc.disable()  # a million new objects, none of them garbage
        try:
            return await self._machine.offload(partial(self._build, news))
        finally:
            gc.enable()

    def _build(self, news: _News) -> MatchIndex:
        self._note(news.message)
        if news.whole:
            return self._kept.turned_into(news.wanted)
        return self.index.patched(news.upserts, news.removals)

    def _note_late(self, news: _News, index: MatchIndex, read: Read) -> None:
        if news.whole:
            self._late = {name: then for name, then in self._late.items() if name in index}
        for name in news.removals:
            self._late.pop(name, None)
        if read:
            self._late.update((name, read) for name in news.wanted if self._is_new(name, index))

    def _is_new(self, name: str, index: MatchIndex) -> bool:
        return name in index and name not in self.index

    def _freeze(self, size: int) -> None:
        """Spark collects garbage after every task: the index must not be looked through."""
        self._unfrozen += size
        if self._unfrozen >= self._large:
            self._unfrozen = 0
            gc.collect()
            gc.freeze()


def _by_id(subscriptions: Iterable[Subscription]) -> dict[str, Subscription]:
    return {one.id: one.sharing_names() for one in subscriptions}


def _now_s() -> float:
    return asyncio.get_running_loop().time()
