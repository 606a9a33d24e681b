"""Which of the live subscriptions want this record?

A MatchIndex is a value: built once or patched from another one, then read by any number of matches,
never changed and never locked. A patch shares all it doesn't touch with the index it came from.

Invariant: the answer is exactly what asking every subscription's filter in turn would give, and so
is the number of filters that failed on the record. Where a subscription hangs only decides what it
costs: one with a condition `field == literal` joined to the rest by && is met by hash and otherwise
free; one without is asked for every record of its topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headgate.decide.filter.compile import Condition
from headgate.decide.filter.paths import Path, Value, follow
from headgate.decide.filter.plan import Filter, compile_filter
from headgate.decide.filter.values import key_of
from headgate.errors import InvalidFilter
from headgate.model.event import Record
from headgate.model.subscription import Subscription

V = TypeVar("V")

SHARDS = 1_024
"""A patch copies the shards it touches: at a million entries that is a thousandth per change."""


@dataclass(frozen=True, slots=True)
class Matched:
    """`by_gateway`: the ids that matched, in no particular order, under the gateway that has them.

    `failures` counts the filters that failed on the record and therefore didn't match.
    """

    by_gateway: dict[str, tuple[str, ...]]
    failures: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """A subscription and where it hangs.

    With a `path`, it hangs on the equality of that field with `key`, and `condition` is what else
    must hold; without, `condition` is all of the filter. None: nothing is left to ask.
    """

    subscription: Subscription
    path: Path | None
    key: Hashable
    condition: Condition | None


class _ShardedMap(Generic[V]):
    """An immutable mapping whose copies share what is equal, shard by shard."""

    __slots__ = ("_shards", "size")

    def __init__(self, shards: list[dict[Hashable, V]] | None = None, size: int = 0) -> None:
        # All shards of an empty map are one empty dict: shards are replaced, never written to.
        self._shards = shards if shards is not None else [{}] * SHARDS
        self.size = size

    def get(self, key: Hashable) -> V | None:
        return self._shards[hash(key) % SHARDS].get(key)

    def changed(self, changes: Mapping[Hashable, V | None]) -> _ShardedMap[V]:
        """A map with `changes` on top; None takes a key out."""
        shards = self._shards.copy()
        fresh: set[int] = set()
        size = self.size
        for key, value in changes.items():
            number = hash(key) % SHARDS
            if number not in fresh:
                fresh.add(number)
                shards[number] = shards[number].copy()
            size -= shards[number].pop(key, None) is not None
            if value is not None:
                shards[number][key] = value
                size += 1
        return _ShardedMap(shards, size)


Bucket = tuple[_Entry, ...]


@dataclass(frozen=True, slots=True)
class _Anchored:
    """Every subscription that hangs on one field, by the value it asks for."""

    read_field: Value
    buckets: _ShardedMap[Bucket]


@dataclass(frozen=True, slots=True)
class _TopicIndex:
    """`always` has no filter, `anchored` hangs on a field, `scanned` is asked every time."""

    always: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    anchored: Mapping[Path, _Anchored] = field(default_factory=dict)
    scanned: Mapping[str, _Entry] = field(default_factory=dict)

    def is_empty(self) -> bool:
        return not (self.always or self.anchored or self.scanned)

    def changed(self, *, leaving: list[_Entry], coming: list[_Entry]) -> _TopicIndex:
        # Copying `always` and `scanned` costs no more than matching one record does anyway.
        always = {gateway: dict.fromkeys(ids) for gateway, ids in self.always.items()}
        scanned = dict(self.scanned)
        edits: defaultdict[Path, _BucketEdits] = defaultdict(dict)
        for entry in leaving:
            subscription = entry.subscription
            if entry.path is not None:
                del self._bucket(edits, entry)[subscription.id]
            elif entry.condition is not None:
                del scanned[subscription.id]
            else:
                del always[subscription.gateway_id][subscription.id]
        for entry in coming:
            subscription = entry.subscription
            if entry.path is not None:
                self._bucket(edits, entry)[subscription.id] = entry
            elif entry.condition is not None:
                scanned[subscription.id] = entry
            else:
                always.setdefault(subscription.gateway_id, {})[subscription.id] = None
        return _TopicIndex(
            {gateway: tuple(ids) for gateway, ids in always.items() if ids},
            self._anchored_with(edits),
            scanned,
        )

    def _bucket(self, edits: defaultdict[Path, _BucketEdits], entry: _Entry) -> dict[str, _Entry]:
        """The bucket of `entry`, by id, in the form that may be written to."""
        assert entry.path is not None
        of_path = edits[entry.path]
        if entry.key not in of_path:
            anchored = self.anchored.get(entry.path)
            before = (anchored and anchored.buckets.get(entry.key)) or ()
            of_path[entry.key] = {one.subscription.id: one for one in before}
        return of_path[entry.key]

    def _anchored_with(self, edits: Mapping[Path, _BucketEdits]) -> dict[Path, _Anchored]:
        result = dict(self.anchored)
        for path, buckets in edits.items():
            known = result.pop(path, None) or _Anchored(follow(path), _ShardedMap())
            changed = known.buckets.changed(
                {key: tuple(bucket.values()) or None for key, bucket in buckets.items()}
            )
            if changed.size:
                result[path] = _Anchored(known.read_field, changed)
        return result


_BucketEdits = dict[Hashable, dict[str, _Entry]]


class MatchIndex:
    """Made by `empty`, `of` and `patched`; everything else only reads."""

    __slots__ = ("_entries", "_topics")

    def __init__(self, topics: Mapping[str, _TopicIndex], entries: _ShardedMap[_Entry]) -> None:
        self._topics = topics
        self._entries = entries

    @classmethod
    def empty(cls) -> MatchIndex:
        return cls({}, _ShardedMap())

    @classmethod
    def of(cls, subscriptions: Iterable[Subscription]) -> MatchIndex:
        return cls.empty().patched(subscriptions, ())

    def __len__(self) -> int:
        return self._entries.size

    def __contains__(self, subscription_id: str) -> bool:
        return self._entries.get(subscription_id) is not None

    def topics(self) -> frozenset[str]:
        """The topics that somebody subscribes to."""
        return frozenset(self._topics)

    def needs_document(self, topic: str) -> bool:
        """Must the document be decoded to match a record of `topic`?"""
        index = self._topics.get(topic)
        return index is not None and bool(index.anchored or index.scanned)

    def patched(self, upserts: Iterable[Subscription], removals: Iterable[str]) -> MatchIndex:
        """An index with `removals` taken out and then `upserts` put in; this one stays as it is.

        An upsert replaces the subscription of the same id, wherever it was; a removal of an unknown
        id is nothing. Raises InvalidFilter, with the `subscription` that has it.
        """
        wanted: dict[str, Subscription | None] = dict.fromkeys(removals)
        wanted.update((subscription.id, subscription) for subscription in upserts)
        leaving: defaultdict[str, list[_Entry]] = defaultdict(list)
        coming: defaultdict[str, list[_Entry]] = defaultdict(list)
        changes: dict[Hashable, _Entry | None] = {}
        compiled: dict[str | None, Filter] = {}
        for subscription_id, subscription in wanted.items():
            before = self._entries.get(subscription_id)
            if subscription == (before and before.subscription):
                continue
            if before is not None:
                leaving[before.subscription.topic].append(before)
            entry = None
            if subscription is not None:
                entry = _entry_of(subscription, compiled)
                coming[subscription.topic].append(entry)
            changes[subscription_id] = entry
        if not changes:
            return self
        topics = dict(self._topics)
        for topic in leaving.keys() | coming.keys():
            index = topics.pop(topic, None) or _TopicIndex()
            changed = index.changed(leaving=leaving[topic], coming=coming[topic])
            if not changed.is_empty():
                topics[topic] = changed
        return MatchIndex(topics, self._entries.changed(changes))

    def match(self, record: Record, document: object) -> Matched:
        """`document` is the record's, decoded; it isn't looked at where no subscription needs it.

        One that isn't a JSON object matches only subscriptions without a filter.
        """
        index = self._topics.get(record.topic)
        if index is None:
            return Matched({}, 0)
        by_gateway = dict(index.always)
        if type(document) is not dict:
            return Matched(by_gateway, 0)
        hits: dict[str, list[str]] = {}
        failures = 0
        for anchored in index.anchored.values():
            key = key_of(anchored.read_field(document))
            bucket = None if key is None else anchored.buckets.get(key)
            if bucket is not None:
                failures += _ask(bucket, document, hits)
        failures += _ask(index.scanned.values(), document, hits)
        for gateway_id, ids in hits.items():
            by_gateway[gateway_id] = by_gateway.get(gateway_id, ()) + tuple(ids)
        return Matched(by_gateway, failures)


def _ask(entries: Iterable[_Entry], document: dict[str, object], hits: dict[str, list[str]]) -> int:
    """Add the entries whose condition holds to `hits`; the number of conditions that failed."""
    failures = 0
    for entry in entries:
        outcome = True if entry.condition is None else entry.condition(document)
        if outcome:
            hits.setdefault(entry.subscription.gateway_id, []).append(entry.subscription.id)
        elif outcome is None:
            failures += 1
    return failures


def _entry_of(subscription: Subscription, compiled: dict[str | None, Filter]) -> _Entry:
    """`compiled` remembers the filters of one patch, where many subscriptions may share a text."""
    where = subscription.where
    if where not in compiled:
        try:
            compiled[where] = compile_filter(where)
        except InvalidFilter as error:
            details = error.details | {"subscription": subscription.id}
            raise InvalidFilter(error.message, **details) from error
    anchor = compiled[where].anchor()
    if anchor is None:
        return _Entry(subscription, None, None, compiled[where].condition)
    return _Entry(subscription, anchor.path, anchor.key, anchor.residual)
