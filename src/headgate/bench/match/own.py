"""`bench match --events FILE --filters FILE`: a user's own events against a user's own filters.

Every line of the one file is an event, every line of the other a filter. Whatever is wrong in them
is said with its line number, before anything is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from headgate.bench.conditions import machine
from headgate.bench.result import Result, Say
from headgate.decide.matching.index import MatchIndex
from headgate.errors import InvalidFilter, InvalidRequest
from headgate.lane.subscriptions.matching import decode_document
from headgate.model.event import Record
from headgate.model.subscription import Subscription

TOPIC = "events"
SECONDS, QUICK_SECONDS = 5.0, 1.0
PASSES_MAX = 100_000


def run_own(events: Path, filters: Path, *, quick: bool, say: Say) -> Result:
    documents = _events(events)
    before = psutil.Process().memory_info().rss
    index = _index(filters)
    grown = psutil.Process().memory_info().rss - before
    gc.collect()
    gc.freeze()
    say(f"{len(documents):,} events, {len(index):,} filters")
    matches, matching, failures, _ = _pass(index, documents)
    times_s: list[float] = []
    total_s, limit_s = 0.0, QUICK_SECONDS if quick else SECONDS
    while total_s < limit_s and len(times_s) < PASSES_MAX:
        *_, seconds = _pass(index, documents)
        times_s.append(seconds)
        total_s += seconds
    events_per_s = len(documents) * len(times_s) / total_s
    return Result(
        name="match",
        conditions={
            **machine(),
            "events": len(documents),
            "filters": len(index),
            "passes": len(times_s),
            "clock": "processor time of one thread",
        },
        figures={
            "events_per_s": round(events_per_s, 1),
            "us_per_event": round(1e6 / events_per_s, 3),
            "matches": matches,
            "matching_events": matching,
            "filter_errors": failures,
            "bytes_per_subscription": round(grown / max(len(index), 1)),
        },
        ratios={},
    )


def _pass(index: MatchIndex, documents: list[bytes]) -> tuple[int, int, int, float]:
    """Matches, events with at least one, filters that failed, seconds."""
    matches = matching = failures = 0
    began = time.thread_time()
    for document in documents:
        record = Record(TOPIC, 0, 1, 1, "e", None, "", "insert", document, None, None, 0)
        matched = index.match(record, decode_document(document))
        failures += matched.failures
        matching += bool(matched.by_gateway)
        matches += sum(map(len, matched.by_gateway.values()))
    return matches, matching, failures, max(time.thread_time() - began, 1e-9)


def _events(path: Path) -> list[bytes]:
    documents = []
    for number, line in _lines(path):
        try:
            decode_document(line)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"Line {number} of {path.name} is not JSON: {error}.") from error
        documents.append(line)
    if not documents:
        raise InvalidRequest(f"{path.name} has no events; write one JSON document per line.")
    return documents


def _index(path: Path) -> MatchIndex:
    """One subscription per line, named for it."""

    def subscriptions() -> Iterator[Subscription]:
        for number, line in _lines(path):
            try:
                where = line.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(f"Line {number} of {path.name} is not UTF-8.") from error
            yield Subscription(str(number), "gateway", TOPIC, where)

    try:
        index = MatchIndex.of(subscriptions())
    except InvalidFilter as error:
        line = error.details["subscription"]
        message = f"Line {line} of {path.name}: {error.message}"
        raise InvalidFilter(message, **error.details) from error
    if not len(index):
        raise InvalidRequest(f"{path.name} has no filters; write one expression per line.")
    return index


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if stripped := line.strip():
                    yield number, stripped
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read: {error.strerror}.") from error
