"""Which of the live subscriptions want this record?

A MatchIndex is a value: built once or patched from another one, then read by any number of matches,
never changed and never locked. A patch shares all it doesn't touch with the index it came from.

Invariant: the answer is exactly what asking every subscription's filter in turn would give, and so
is the number of filters that failed on the record; a subscription to a shard is asked only about
the records of its shard. Where a subscription hangs only decides what it costs: all the targets of
a consumer group together cost one lookup.

A record about a whole collection concerns every subscription of its topic, of whatever shard, whose
filter doesn't exclude the collection: nearly all have to be told, so nearly all are looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from headgate.decide.connectors.whole_collection import concerned
from headgate.decide.filter.exclusion import excludes, known_of
from headgate.decide.filter.fast import Constants
from headgate.decide.filter.paths import Document, Path
from headgate.decide.filter.templates import Templates
from headgate.decide.groups.targets import Shard, target_of
from headgate.decide.matching.explain import Explanation, explain
from headgate.decide.matching.node import Node
from headgate.decide.matching.sharded import Sharded
from headgate.decide.matching.tree_places import (
    EVERYTHING,
    Branch,
    Entry,
    ShapeBranches,
    branches_of,
)
from headgate.errors import InvalidFilter
from headgate.model.event import WHOLE_COLLECTION, Record
from headgate.model.subscription import Subscription

CHANGES_AT_ONCE = 131_072
"""A larger patch is made in steps, so that what it needs meanwhile stays small."""


class Matched(msgspec.Struct, frozen=True):
    """`by_gateway`: the ids that matched, in no particular order, under the gateway that has them.

    `failures` counts the filters that failed on the record and therefore didn't match.
    """

    by_gateway: dict[str, tuple[str, ...]]
    failures: int


_NOBODY = Matched({}, 0)


class TopicIndex:
    """`always` has no filter and needs no document; everything else hangs in the tree.

    Subscriptions to a shard are in an index of their shard, under the count and the number.
    """

    __slots__ = ("always", "shards", "tree")

    def __init__(
        self,
        always: Mapping[str, tuple[str, ...]],
        tree: Node,
        shards: Mapping[int, Mapping[int, TopicIndex]] | None = None,
    ) -> None:
        self.always = always
        self.tree = tree
        self.shards = shards or {}

    @classmethod
    def empty(cls) -> TopicIndex:
        return cls({}, Node.empty())

    def is_empty(self) -> bool:
        return not self.always and not self.shards and self.tree.is_empty()

    def needs_document(self) -> bool:
        return not self.tree.is_empty() or any(
            not index.tree.is_empty() for some in self.shards.values() for index in some.values()
        )

    def at(self, shard: Shard | None) -> TopicIndex:
        """The index of `shard`, or this one."""
        if shard is None:
            return self
        return self.shards.get(shard[0], {}).get(shard[1]) or TopicIndex.empty()

    def changed(
        self, shard: Shard | None, *, leaving: list[Entry], coming: list[Entry]
    ) -> TopicIndex:
        """`leaving` and `coming` are all of `shard`."""
        if shard is None:
            return self._changed(leaving, coming)
        count, number = shard
        some = dict(self.shards.get(count, {}))
        some[number] = self.at(shard)._changed(leaving, coming)
        if some[number].is_empty():
            del some[number]
        shards = {**self.shards, count: some}
        if not some:
            del shards[count]
        return TopicIndex(self.always, self.tree, shards)

    def _changed(self, leaving: list[Entry], coming: list[Entry]) -> TopicIndex:
        tree = self.tree.changed(
            leaving=[entry for entry in leaving if entry.subscription.where is not None],
            coming=[entry for entry in coming if entry.subscription.where is not None],
        )
        # Copying `always` costs no more than matching one record does anyway.
        always = {gateway: dict.fromkeys(ids) for gateway, ids in self.always.items()}
        for entry in leaving:
            if entry.subscription.where is None:
                del always[entry.subscription.gateway_id][entry.subscription.id]
        for entry in coming:
            if entry.subscription.where is None:
                of_gateway = always.setdefault(entry.subscription.gateway_id, {})
                of_gateway[entry.subscription.id] = None
        kept = {gateway: tuple(ids) for gateway, ids in always.items() if ids}
        return TopicIndex(kept, tree, self.shards)


class MatchIndex:
    """Made by `empty`, `of` and `patched`; everything else only reads."""

    __slots__ = ("_entries", "_plans", "_topics", "_whole")

    def __init__(
        self,
        topics: Mapping[str, TopicIndex],
        entries: Sharded[str, tuple[Entry, ...] | Entry],
        plans: Templates[ShapeBranches],
    ) -> None:
        self._topics = topics
        self._entries = entries
        self._plans = plans
        self._whole: tuple[tuple[str, tuple[str, ...]], dict[str, tuple[str, ...]]] | None = None
        """Whom the last record about a whole collection concerned. The next is likely the same one
        in another partition, and to find out takes a second or so per million."""

    @classmethod
    def empty(cls) -> MatchIndex:
        return cls({}, Sharded(), Templates(branches_of))

    @classmethod
    def of(cls, subscriptions: Iterable[Subscription]) -> MatchIndex:
        return cls.empty().patched(subscriptions, ())

    def __len__(self) -> int:
        return self._entries.size

    def __contains__(self, subscription_id: str) -> bool:
        return self._entries.get(subscription_id) is not None

    def subscription(self, subscription_id: str) -> Subscription | None:
        entries = self._entries.get(subscription_id)
        return None if entries is None else _several(entries)[0].subscription

    def ids(self) -> Iterator[str]:
        """Of all subscriptions, in no particular order."""
        return (_several(entries)[0].subscription.id for entries in self._entries.values())

    def topics(self) -> frozenset[str]:
        """The topics that have subscriptions."""
        return frozenset(self._topics)

    def needs_document(self, topic: str) -> bool:
        """Must the document be decoded to match a record of `topic`?"""
        index = self._topics.get(topic)
        return index is not None and index.needs_document()

    # --- changing --------------------------------------------------------------------------------

    def patched(self, upserts: Iterable[Subscription], removals: Iterable[str]) -> MatchIndex:
        """An index with `removals` taken out and then `upserts` put in; this one stays as it is.

        An upsert replaces the subscription of the same id, wherever it was; a removal of an unknown
        id is nothing. Raises InvalidFilter, with the `subscription` that has it.
        """
        index = self
        for some in _in_steps(dict.fromkeys(removals).items()):
            index = index._with(dict(some))
        for some in _in_steps((subscription.id, subscription) for subscription in upserts):
            index = index._with(dict(some))
        return index

    def _with(self, wanted: Mapping[str, Subscription | None]) -> MatchIndex:
        leaving: dict[_Place, list[Entry]] = {}
        coming: dict[_Place, list[tuple[Subscription, ShapeBranches, Constants]]] = {}
        changes: dict[str, tuple[Entry, ...] | Entry | None] = {}
        for subscription_id, subscription in wanted.items():
            before = _several(self._entries.get(subscription_id))
            if subscription == (before[0].subscription if before else None):
                continue
            changes[subscription_id] = None
            if before:
                leaving.setdefault(_place_of(before[0].subscription), []).extend(before)
            if subscription is not None:
                planned = (subscription, *self._compiled(subscription))
                coming.setdefault(_place_of(subscription), []).append(planned)
        if not changes:
            return self
        topics = dict(self._topics)
        for place in leaving.keys() | coming.keys():
            topic, shard = place
            index = topics.pop(topic, None) or TopicIndex.empty()
            entries = _hung(index.at(shard).tree, coming.get(place, []))
            for entry in entries:
                known = _several(changes[entry.subscription.id])
                changes[entry.subscription.id] = (*known, entry) if known else entry
            changed = index.changed(shard, leaving=leaving.get(place, []), coming=entries)
            if not changed.is_empty():
                topics[topic] = changed
        return MatchIndex(topics, self._entries.changed(changes), self._plans)

    def _compiled(self, subscription: Subscription) -> tuple[ShapeBranches, Constants]:
        if subscription.where is None:
            return EVERYTHING, ()
        try:
            return self._plans.compiled(subscription.where)
        except InvalidFilter as error:
            details = error.details | {"subscription": subscription.id}
            raise InvalidFilter(error.message, **details) from error

    # --- matching --------------------------------------------------------------------------------

    def match(self, record: Record, document: object) -> Matched:
        """`document` is the record's, decoded; it isn't looked at where no subscription needs it.

        One that isn't a JSON object matches only subscriptions without a filter.
        """
        index = self._topics.get(record.topic)
        if index is None:
            return _NOBODY
        if record.op in WHOLE_COLLECTION:
            return Matched(self._concerned(record.topic, concerned(record)), 0)
        by_gateway = dict(index.always)
        failures = _collect(index.tree, document, by_gateway)
        for count, some in index.shards.items():
            shard = some.get(target_of(record, count))
            if shard is not None:
                for gateway_id, found in shard.always.items():
                    by_gateway[gateway_id] = by_gateway.get(gateway_id, ()) + found
                failures += _collect(shard.tree, document, by_gateway)
        return Matched(by_gateway, failures) if by_gateway or failures else _NOBODY

    def _concerned(self, topic: str, collections: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Whom a record about the whole of `collections` concerns, per gateway."""
        about = topic, collections
        if self._whole is None or self._whole[0] != about:
            self._whole = about, self._not_excluding(topic, collections)
        return dict(self._whole[1])

    def _not_excluding(self, topic: str, collections: Sequence[str]) -> dict[str, tuple[str, ...]]:
        ids: defaultdict[str, list[str]] = defaultdict(list)
        known = [known_of(one) for one in collections]
        for entries in self._entries.values():
            entry: Entry = entries if type(entries) is Entry else entries[0]  # type: ignore[index]
            subscription, exclusion = entry.subscription, entry.part.exclusion
            if subscription.topic != topic:
                continue
            if exclusion is None or not excludes(exclusion, entry.constants, known):
                ids[subscription.gateway_id].append(subscription.id)
        return {gateway_id: tuple(found) for gateway_id, found in ids.items()}

    def explain(self, document: object, subscription_id: str) -> Explanation | None:
        """The verdict of every condition; None when there is no such subscription."""
        subscription = self.subscription(subscription_id)
        return None if subscription is None else explain(document, subscription)


_Place = tuple[str, Shard | None]
"""Topic and shard: where a subscription is looked for."""


def _place_of(subscription: Subscription) -> _Place:
    return subscription.topic, subscription.shard


def _collect(tree: Node, document: object, by_gateway: dict[str, tuple[str, ...]]) -> int:
    """Adds what the tree finds to `by_gateway`; returns how many filters failed."""
    if type(document) is not dict:
        return 0
    hits, failures = _search(tree, document)
    if hits:
        ids: dict[str, list[str]] = {}
        for subscription in hits:
            ids.setdefault(subscription.gateway_id, []).append(subscription.id)
        for gateway_id, found in ids.items():
            by_gateway[gateway_id] = by_gateway.get(gateway_id, ()) + tuple(found)
    return failures


def _search(tree: Node, document: Document) -> tuple[Sequence[Subscription], int]:
    """The subscriptions whose filter holds, and how many filters failed."""
    found = _buckets(tree, document)
    if not found:
        return (), 0  # most records of most topics concern nobody
    hits: list[Subscription] = []
    failures = 0
    asked: set[str] = set()
    pending: list[Node] = []
    node = tree
    while True:
        met = node.depth + 1
        for bucket in found:
            kind = type(bucket)
            if kind is Node:
                pending.append(bucket)
                continue
            for entry in (bucket,) if kind is Entry else bucket:
                part = entry.part
                if part.split:
                    if entry.subscription.id in asked:
                        continue
                    asked.add(entry.subscription.id)
                check = part.checks[met]
                verdict = True if check is None else check(document, entry.constants)
                if verdict:
                    hits.append(entry.subscription)
                elif verdict is None:
                    failures += 1
        if not pending:
            return hits, failures
        node = pending.pop()
        found = _buckets(node, document)


def _buckets(node: Node, document: Document) -> list[Any]:
    """The buckets of `node` that may concern the document."""
    found: list[Any] = [node.stay.values()] if node.stay.size else []
    node.find(document, found)
    return found


def _hung(tree: Node, coming: list[tuple[Subscription, ShapeBranches, Constants]]) -> list[Entry]:
    """Decide what each hangs on: of several equalities the one whose field tells most apart."""
    distinct: dict[Path, set[Hashable]] = {}
    for _, plan, constants in coming:
        for path, part in plan.led_by.items():
            [(_, key)] = part.index_keys[0].spread(constants)
            distinct.setdefault(path, set()).add(key)
    sizes = {path: max(tree.distinct(path), len(keys)) for path, keys in distinct.items()}
    entries = []
    for subscription, plan, constants in coming:
        parts: tuple[Branch, ...] = plan.parts
        if plan.led_by:
            parts = (plan.led_by[max(plan.led_by, key=sizes.__getitem__)],)
        entries += [Entry(subscription, part, constants) for part in parts]
    return entries


def _several(entries: tuple[Entry, ...] | Entry | None) -> tuple[Entry, ...]:
    # Nearly all subscriptions have one entry, and a million tuples of one are 48 MB.
    if entries is None:
        return ()
    return (entries,) if type(entries) is Entry else entries  # type: ignore[return-value]


def _in_steps(changes: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(changes)
    while some := list(islice(rest, CHANGES_AT_ONCE)):
        yield some
