"""One workload at one number of subscriptions, in a process of its own, so that memory and garbage
of one case don't show in another.

Time is the processor time of this one thread: on a machine that does other things, too, that is
what the work takes of one core. Changes are due by the same clock.
"""

from __future__ import annotations

import gc
import time
from itertools import chain, cycle, islice

import msgspec
import psutil

from headgate.bench.match.workloads import TOPIC, events, subscriptions
from headgate.bench.result import Failed
from headgate.bench.worker import serve
from headgate.decide.filter.plan import compile_filter
from headgate.decide.matching.index import MatchIndex
from headgate.lane.subscriptions.matching import decode_document
from headgate.model.event import Record
from headgate.model.subscription import Subscription

CHANGES_PER_S = 1_000
CHANGES_PER_PATCH = 10
EVENTS_PER_READ = 100
CHANGED_SEED, EVENT_SEED, SEED = 3, 2, 1
EVENTS = 60_000
EVENTS_PER_S = 200_000
"""Few of them come a second time, so that the processor's caches don't know them."""
LAST = 10**9
"""More than anybody will see changed."""
NAIVE_EVENTS = 200


class Build(msgspec.Struct, tag=True):
    workload: str
    subscriptions: int


class Built(msgspec.Struct):
    seconds: float
    bytes: float
    """What the process grew by."""


class Measure(msgspec.Struct, tag=True):
    seconds: float


class AskAll(msgspec.Struct, tag=True):
    """The baseline: every filter is asked about every event, one after the other."""

    workload: str
    subscriptions: int


class Asked(msgspec.Struct):
    events: int
    seconds: float


class Measured(msgspec.Struct):
    """Of all `events`; `changes` were made meanwhile and took `changing_s` of the `seconds`."""

    events: int
    seconds: float
    matches: int
    matching_events: int
    changes: int
    changing_s: float
    failures: int
    event_bytes: float


class Case:
    def __init__(self, order: Build) -> None:
        size, workload = order.subscriptions, order.workload
        self._size = size
        self._new = subscriptions(workload, LAST, of=size, seed=CHANGED_SEED)
        process = psutil.Process()
        before = process.memory_info().rss
        began = time.process_time()
        # As a lane does: building makes a million objects, none of which is garbage.
        gc.disable()
        self._index = MatchIndex.of(subscriptions(workload, size, of=size, seed=SEED))
        gc.enable()
        gc.collect()
        gc.freeze()
        seconds = time.process_time() - began
        self.built = Built(seconds, process.memory_info().rss - before)
        self._oldest = chain(
            (f"s{SEED}-{number}" for number in range(size)),
            (f"s{CHANGED_SEED}-{number}" for number in range(LAST)),
        )
        self._documents: list[bytes] = []

    def measure(self, seconds: float) -> Measured:
        if not self._documents:
            count = min(EVENTS, int(seconds * EVENTS_PER_S))
            self._documents = events(count, of=self._size, seed=EVENT_SEED)
        documents = self._documents
        patches = self._patches(int(seconds * CHANGES_PER_S) + CHANGES_PER_S // 10)
        self._read(documents[:EVENTS_PER_READ])
        found = Measured(0, 0.0, 0, 0, 0, 0.0, 0, _mean_size(documents))
        began = now = time.thread_time()
        reads = cycle(range(0, len(documents), EVENTS_PER_READ))
        while now - began < seconds:
            at = next(reads)
            read = documents[at : at + EVENTS_PER_READ]
            matches, matching, failures = self._read(read)
            found.events += len(read)
            found.matches += matches
            found.matching_events += matching
            found.failures += failures
            now = time.thread_time()
            while found.changes < (now - began) * CHANGES_PER_S and patches:
                self._index = self._index.patched(*patches.pop())
                found.changes += CHANGES_PER_PATCH
                then, now = now, time.thread_time()
                found.changing_s += now - then
        found.seconds = now - began
        return found

    def _read(self, documents: list[bytes]) -> tuple[int, int, int]:
        """What a lane does with the records of one read, up to the delivery."""
        index = self._index
        matches = matching = failures = 0
        for document in documents:
            record = _record(document)
            matched = index.match(record, decode_document(record.document))
            failures += matched.failures
            if matched.by_gateway:
                matching += 1
                for ids in matched.by_gateway.values():
                    matches += len(ids)
        return matches, matching, failures

    def _patches(self, changes: int) -> list[tuple[list[Subscription], list[str]]]:
        """Half of the changes are new subscriptions, half are the end of the oldest ones."""
        half = CHANGES_PER_PATCH // 2
        return [
            (list(islice(self._new, half)), list(islice(self._oldest, half)))
            for _ in range(changes // CHANGES_PER_PATCH)
        ]


def _mean_size(documents: list[bytes]) -> float:
    return sum(map(len, documents)) / len(documents)


def _record(document: bytes) -> Record:
    return Record(TOPIC, 0, 1, 1, "e", None, "", "insert", document, None, None, 0)


def ask_all(order: AskAll) -> Asked:
    """Without the index, and a check that the index finds the same."""
    size = order.subscriptions
    live = list(subscriptions(order.workload, size, of=size, seed=SEED))
    filters = [compile_filter(one.where) for one in live]
    documents = [decode_document(each) for each in events(NAIVE_EVENTS, of=size, seed=EVENT_SEED)]
    began = time.thread_time()
    matches = sum(one.matches(document) for document in documents for one in filters)
    seconds = time.thread_time() - began
    index, record = MatchIndex.of(live), _record(b"")
    matched = [index.match(record, document).by_gateway for document in documents]
    found = sum(len(ids) for by_gateway in matched for ids in by_gateway.values())
    if found != matches:
        raise Failed(f"the index found {found} matches, its filters say {matches}")
    return Asked(NAIVE_EVENTS, seconds)


class _Process:
    """At most one case at a time."""

    def __init__(self) -> None:
        self._case: Case | None = None

    def answer(self, order: Build | Measure | AskAll) -> Built | Measured | Asked:
        match order:
            case AskAll():
                return ask_all(order)
            case Build():
                self._case = Case(order)
                return self._case.built
            case Measure():
                assert self._case is not None
                return self._case.measure(order.seconds)


if __name__ == "__main__":
    serve(Build | Measure | AskAll, _Process().answer)  # type: ignore[arg-type]  # a union is a type here
