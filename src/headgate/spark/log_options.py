"""The options of `format("headgate_log")`: what is asked for, checked and complete.

Invariant: a LogOptions came from options that are all known and all possible, and its folder was a
data folder of a format that this Headgate reads. Mistakes are one sentence. Runs on the driver, so
that `data` means a folder seen from there; never makes a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headgate.adapters.embedded.folder import FORMAT_NAME, DataFolder
from headgate.decide.starting import Start, parse_positions, parse_start
from headgate.errors import DataFolderError, InvalidRequest, UnknownTopic
from headgate.model.event import PartitionRef

FORMAT = "headgate_log"
DEFAULT_DATA = "headgate-data"
DEFAULT_ROWS_PER_PARTITION = 250_000
MAX_ROWS = 2**31 - 1
KNOWN = ("topic", "path", "data", "from", "up_to", "rows_per_partition", "max_records_per_batch")


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`root` is absolute. `up_to` gives the last seq wanted; `start` knows about `from`."""

    root: str
    topic: str
    start: Start
    up_to: dict[int, int] | None
    rows_per_partition: int
    max_records_per_batch: int | None


def read_options(options: Mapping[str, str]) -> LogOptions:
    given = {name.lower(): value.strip() for name, value in options.items()}
    for name, value in given.items():
        if name not in KNOWN:
            raise InvalidRequest(
                f"{FORMAT} has no option {name}; it has {', '.join(KNOWN)}", option=name
            )
        if not value:
            raise InvalidRequest(f"option {name} is empty; give it a value or leave it out")
    up_to = given.get("up_to")
    return LogOptions(
        root=_data_folder(given.get("data", DEFAULT_DATA)),
        topic=_topic(given),
        start=parse_start(given.get("from", "earliest")),
        up_to=None if up_to is None else parse_positions(up_to, "up_to"),
        rows_per_partition=_rows(given, "rows_per_partition") or DEFAULT_ROWS_PER_PARTITION,
        max_records_per_batch=_rows(given, "max_records_per_batch"),
    )


def topic_partitions(wanted: LogOptions) -> list[PartitionRef]:
    """The partitions that are there by now; raises UnknownTopic when there is none."""
    stored = DataFolder(Path(wanted.root)).stored_partitions()
    found = [ref for ref in stored if ref.topic == wanted.topic]
    if not found:
        topics = sorted({ref.topic for ref in stored})
        there = f"it has {', '.join(topics[:10])}" if topics else "it has none yet"
        raise UnknownTopic(
            f"{wanted.root} has no topic {wanted.topic}: {there}; "
            "create the topic or name another data folder with the option data",
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


def _data_folder(path: str) -> str:
    root = Path(path).expanduser().resolve()
    if not (root / FORMAT_NAME).is_file():
        raise DataFolderError(
            f"{root} is not a Headgate data folder; name the one that headgate up --data uses "
            "with the option data",
            path=str(root),
        )
    return str(DataFolder.open(root).root)


def _rows(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= MAX_ROWS):
        raise InvalidRequest(
            f"{name}={text[:100]} is not a number of records from 1 to {MAX_ROWS}", option=name
        )
    return int(text)
