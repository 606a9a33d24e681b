"""The tables of a partition's log file, and the statements that more than one module uses.

`partition` is one row: the epoch and the partitioning version that may append, whether it is
sealed, what its records count in bytes, and the head that never goes back, which is why it is
stored and not derived from the records (they can be dropped). `doubts` counts the writes whose
outcome had to be looked up: the count is what such a look commits. `ids` are the idempotency keys,
apart from the records because they expire at another time. `intakes` says how far each connector
has come here, by partitioning version. `times` are the marks of the index by time
(adapters/log/times.py).

A file is of a format. What format 2 adds is added to a file of format 1 by the first that opens it
for writing; readers take both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain

import msgspec

from headgate.model.event import Event

INTAKES_SCHEMA = """
CREATE TABLE IF NOT EXISTS intakes (
    connector TEXT NOT NULL,
    version INTEGER NOT NULL,
    partitions INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    beginning INTEGER NOT NULL,
    position TEXT NOT NULL,
    ended INTEGER NOT NULL,
    snapshot TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (connector, version)
) WITHOUT ROWID;
"""
"""Files that were made before there were connectors lack it."""
HAS_SNAPSHOTS = "SELECT count(*) FROM pragma_table_info('intakes') WHERE name = 'snapshot'"
ADD_SNAPSHOTS = "ALTER TABLE intakes ADD COLUMN snapshot TEXT NOT NULL DEFAULT ''"
"""For files that were made before there were snapshots."""

LOG_FORMAT = 2
TIMES_SCHEMA = """
CREATE TABLE times (
    time_ms INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL
);
"""
TO_FORMAT_2 = f"""
ALTER TABLE records ADD COLUMN headers BLOB;
ALTER TABLE records ADD COLUMN checksum BLOB;
{TIMES_SCHEMA}
"""

LOG_SCHEMA = """
CREATE TABLE partition (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    head INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    doubts INTEGER NOT NULL
);
INSERT INTO partition VALUES (1, 0, 1, 0, 0, 0, 0);
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    key TEXT,
    collection TEXT NOT NULL,
    op TEXT NOT NULL,
    document BLOB NOT NULL,
    earlier BLOB,
    source TEXT,
    time_ms INTEGER NOT NULL,
    headers BLOB,
    checksum BLOB
);
CREATE TABLE ids (
    event_id TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    time_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX ids_by_time ON ids (time_ms);
"""
INTAKES = "SELECT * FROM intakes WHERE connector = ? ORDER BY version"
"""However many columns the file has; the first one is the connector."""
HAS_INTAKES = "SELECT count(*) FROM sqlite_master WHERE name = 'intakes'"

CHECKPOINTS_SCHEMA = """
CREATE TABLE checkpoints (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    window INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    tally TEXT NOT NULL DEFAULT '{}',
    redeliver_to INTEGER NOT NULL DEFAULT 0,
    skip_to INTEGER NOT NULL DEFAULT 0,
    tried TEXT NOT NULL DEFAULT '[]',
    stopped TEXT NOT NULL DEFAULT '',
    again_to INTEGER NOT NULL DEFAULT 0,
    back_to INTEGER NOT NULL DEFAULT -1,
    ahead_to INTEGER NOT NULL DEFAULT 0,
    claimant TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
"""
LATER_CHECKPOINT_COLUMNS = {
    "tally": "ALTER TABLE checkpoints ADD COLUMN tally TEXT NOT NULL DEFAULT '{}'",
    "redeliver_to": "ALTER TABLE checkpoints ADD COLUMN redeliver_to INTEGER NOT NULL DEFAULT 0",
    "skip_to": "ALTER TABLE checkpoints ADD COLUMN skip_to INTEGER NOT NULL DEFAULT 0",
    "tried": "ALTER TABLE checkpoints ADD COLUMN tried TEXT NOT NULL DEFAULT '[]'",
    "stopped": "ALTER TABLE checkpoints ADD COLUMN stopped TEXT NOT NULL DEFAULT ''",
    "again_to": "ALTER TABLE checkpoints ADD COLUMN again_to INTEGER NOT NULL DEFAULT 0",
    "back_to": "ALTER TABLE checkpoints ADD COLUMN back_to INTEGER NOT NULL DEFAULT -1",
    "ahead_to": "ALTER TABLE checkpoints ADD COLUMN ahead_to INTEGER NOT NULL DEFAULT 0",
    "claimant": "ALTER TABLE checkpoints ADD COLUMN claimant TEXT NOT NULL DEFAULT ''",
}
"""What files of former versions lack."""

RECORD_COLUMNS = 12
RECORDS = "INSERT INTO records VALUES "
EVENT_COLUMNS = ("event_id", "key", "collection", "op", "document", "earlier", "source")
"""Of the records, between their version and their time_ms; behind that come the headers."""
NEW_FIELDS = (*Event.__struct_fields__, "time_ms", "checksum")
"""What a new record brings, in the order in which it comes."""
SELDOM = ("earlier", "source", "headers")
SHARED = ("op", "collection")
PLAIN_FIELDS = tuple(field for field in NEW_FIELDS if field not in {*SELDOM, *SHARED})
"""What each of them has to bring where none has a field of SELDOM and all share the others. Every
value that isn't handed to SQLite is worth one to two per cent of an append."""
ADVANCE = """
UPDATE partition SET head = head + ?, size_bytes = size_bytes + ?
WHERE epoch = ? AND version = ? AND head = ? AND sealed = 0
"""

EXTENT = "SELECT coalesce((SELECT min(seq) FROM records), head + 1), head FROM partition"
HEAD = "SELECT head FROM partition"
STATE = "SELECT epoch, version, head, sealed, size_bytes FROM partition"
READ = "SELECT * FROM records WHERE seq > ? ORDER BY seq LIMIT ?"
"""However many columns the file's format has, also when its writer changes that meanwhile."""
NEXT_SEQS = "SELECT seq FROM records WHERE seq > ? ORDER BY seq LIMIT 2"
BEFORE = "SELECT seq FROM records WHERE seq < ? ORDER BY seq DESC LIMIT 2"
HAS_TIMES = "SELECT count(*) FROM sqlite_master WHERE name = 'times'"
NEWEST_MARK = "SELECT max(time_ms) FROM times"
MARK = "INSERT INTO times VALUES (?, ?)"
MARK_BEFORE = "SELECT seq FROM times WHERE time_ms <= ? ORDER BY time_ms DESC LIMIT 1"
SINCE = "SELECT seq FROM records WHERE seq >= ? AND seq < ? AND time_ms >= ? ORDER BY seq LIMIT 1"
FORGET_MARKS = """
DELETE FROM times WHERE seq <= ? AND time_ms < (SELECT max(time_ms) FROM times)
"""
FIND = "SELECT event_id, seq FROM ids WHERE event_id IN ({})"
"""With a mark for every id."""
IDS_OF_RECORDS = "INSERT INTO ids SELECT event_id, seq, time_ms FROM records WHERE seq > ?"
FRONT = """
SELECT seq, coalesce(CAST(time_ms AS INTEGER), 0), coalesce(octet_length(document), 0),
coalesce(octet_length(earlier), 0) + coalesce(octet_length(headers), 0)
FROM records WHERE seq <= ? ORDER BY seq LIMIT ?
"""
"""Numbers, also of what is damaged: it goes like any other."""
FORGET_IDS = """
DELETE FROM ids WHERE event_id IN (SELECT event_id FROM ids WHERE time_ms < ? LIMIT ?)
"""


def rows(columns: int, count: int) -> str:
    """Placeholders for `count` rows, to be put behind VALUES."""
    row = "(" + ",".join("?" * columns) + ")"
    return ",".join([row] * count)


class NewRecords(msgspec.Struct, frozen=True):
    """The values of new records for `new_records`; those that are `plain`, as nearly all are, have
    no field of SELDOM, and the same values for those of SHARED."""

    values: list[object]
    shared: tuple[object, ...]

    @property
    def plain(self) -> bool:
        return bool(self.shared)

    @property
    def columns(self) -> int:
        return len(PLAIN_FIELDS if self.plain else NEW_FIELDS)

    @classmethod
    def of(cls, contents: Sequence[tuple[object, ...]], checksums: Iterable[bytes]) -> NewRecords:
        """`contents` are the fields of each Event, in its order, and the time."""
        if not contents:
            return cls([], ())
        columns = dict(zip(NEW_FIELDS, zip(*contents, strict=True), strict=False))
        shared = {one: columns[one][0] for one in SHARED} | dict.fromkeys(SELDOM)
        if all(columns[one].count(value) == len(contents) for one, value in shared.items()):
            for one in shared:
                del columns[one]
        else:
            shared = {}
        values = chain.from_iterable(zip(*columns.values(), checksums, strict=True))
        return cls(list(values), tuple(shared[one] for one in SHARED if shared))


@cache
def new_records(count: int, *, plain: bool) -> str:
    """Inserts up to `count` records, whose seqs follow each other.

    Takes the first seq and the version, then what the NewRecords share, and their values; rows
    without an event_id are left out, so that a few statements serve every number of records.
    """
    fields = PLAIN_FIELDS if plain else NEW_FIELDS
    numbered = ",".join(f"({number}{',?' * len(fields)})" for number in range(count))
    # SQLite calls what stands in VALUES column1, column2, …
    named = (
        dict.fromkeys(SELDOM, "NULL")
        | {name: f"?{at}" for at, name in enumerate(SHARED, 3)}
        | {name: f"column{at}" for at, name in enumerate(fields, 2)}
    )
    stored = ", ".join([named[name] for name in (*EVENT_COLUMNS, "time_ms", "headers", "checksum")])
    return (
        f"INSERT INTO records SELECT ?1 + column1, ?2, {stored} "  # noqa: S608 - names from here
        f"FROM (VALUES {numbered}) WHERE {named['event_id']} IS NOT NULL"
    )


@cache
def last_new_records(count: int, *, plain: bool) -> str:
    """Like `new_records`, and all records behind a seq, which it takes last, get their keys."""
    return f"{new_records(count, plain=plain)};{IDS_OF_RECORDS}"
