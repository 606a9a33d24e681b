"""The options of `format("headgate_log")`: what is asked for, checked and complete.

Invariant: a LogOptions came from options that are all known and all possible, and a folder that it
names was a data folder of a format that this Headgate reads. Mistakes are one sentence. Runs on the
driver, so that `data` means a folder seen from there; never makes a folder.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headgate.decide.feed.start_positions import Start, parse_positions, parse_start
from headgate.errors import InvalidRequest, UnknownTopic
from headgate.model.event import PartitionRef
from headgate.spark.table.place import LogPlace, in_folder, in_postgres

FORMAT = "headgate_log"
FAIL_ON_DATA_LOSS = "failOnDataLoss"
"""Named and written as Spark's own source for Kafka has it."""
DEFAULT_DATA = "headgate-data"
DEFAULT_ROWS_PER_PARTITION = 250_000
MAX_ROWS = 2**31 - 1
KNOWN = (
    "topic",
    "path",
    "data",
    "dsn",
    "from",
    "up_to",
    "rows_per_partition",
    "max_records_per_batch",
    FAIL_ON_DATA_LOSS,
)
_BY_LOWER_CASE = {name.lower(): name for name in KNOWN}


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`up_to` gives the last seq wanted; `start` knows about `from`. `fails_on_loss`: a read fails
    where the log lacks records that are wanted, or says that its origin has lost changes."""

    place: LogPlace
    topic: str
    start: Start
    up_to: dict[int, int] | None
    rows_per_partition: int
    max_records_per_batch: int | None
    fails_on_loss: bool = True


def read_options(options: Mapping[str, str]) -> LogOptions:
    given = {
        _BY_LOWER_CASE.get(name.lower(), name.lower()): value.strip()
        for name, value in options.items()
    }
    for name, value in given.items():
        if name not in KNOWN:
            raise InvalidRequest(
                f"{FORMAT} has no option {name}; it has {', '.join(KNOWN)}", option=name
            )
        if not value:
            raise InvalidRequest(f"option {name} is empty; give it a value or leave it out")
    up_to = given.get("up_to")
    return LogOptions(
        place=_place(given),
        topic=_topic(given),
        start=parse_start(given.get("from", "earliest")),
        up_to=None if up_to is None else parse_positions(up_to, "up_to"),
        rows_per_partition=_rows(given, "rows_per_partition") or DEFAULT_ROWS_PER_PARTITION,
        max_records_per_batch=_rows(given, "max_records_per_batch"),
        fails_on_loss=_is_true(given, FAIL_ON_DATA_LOSS, default=True),
    )


def topic_partitions(wanted: LogOptions) -> list[PartitionRef]:
    """The partitions that are there by now; raises UnknownTopic when there is none."""
    stored = wanted.place.stored_partitions()
    found = [ref for ref in stored if ref.topic == wanted.topic]
    if not found:
        topics = sorted({ref.topic for ref in stored})
        there = f"it has {', '.join(topics[:10])}" if topics else "it has none yet"
        raise UnknownTopic(
            f"{wanted.place} has no topic {wanted.topic}: {there}; create the topic or name "
            "another log with the option data or dsn",
            topic=wanted.topic,
        )
    return found


def _topic(given: Mapping[str, str]) -> str:
    named = {given[name] for name in ("topic", "path") if name in given}
    if len(named) != 1:
        raise InvalidRequest(
            f'{FORMAT} reads one topic: name it once, with option("topic", NAME) or load(NAME)'
        )
    return named.pop()


def _place(given: Mapping[str, str]) -> LogPlace:
    if "dsn" not in given:
        return in_folder(given.get("data", DEFAULT_DATA))
    if "data" in given:
        raise InvalidRequest(
            "data names a folder and dsn a database, but there is one log: leave one of them out"
        )
    return in_postgres(given["dsn"])


def _is_true(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default))
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"{name}={text[:100]} is neither true nor false", option=name)
    return text.lower() == "true"


def _rows(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= MAX_ROWS):
        raise InvalidRequest(
            f"{name}={text[:100]} is not a number of records from 1 to {MAX_ROWS}", option=name
        )
    return int(text)
