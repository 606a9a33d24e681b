"""The answer of GET /v1/topics/{name}/records: a look at what is in a topic, for people.

Nothing is consumed or moved by looking. A document is what its producer sent, unless the
configuration masks fields of it: those have MASKED instead, and are named.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.event import Op

MASKED = "(masked)"
"""What stands in the place of a value that `ui.mask` names."""

LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000
BYTES_DEFAULT = 1024 * 1024
BYTES_MAX = 8 * 1024 * 1024
TIMEOUT_DEFAULT = "1s"
TIMEOUT_MAX_MS = 10_000
SCANNED_MAX = 50_000
"""Records that one request looks at, at most, whether they match or not."""

BrowseStop = Literal["end", "limit", "max_bytes", "timeout", "scanned"]


class BrowsedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`size_bytes` is the document's; `masked` names the fields whose values aren't shown.
    `earlier` is the document before the change, where the source gives it, and `source` the
    position in the origin that a connector has read it at."""

    partition: int
    seq: int
    version: int
    event_id: str
    op: Op
    time_ms: int
    size_bytes: int
    document: msgspec.Raw
    key: str | None = None
    collection: str = ""
    headers: dict[str, str] = {}
    earlier: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    source: str | None = None
    masked: list[str] = []


class MissingRecords(msgspec.Struct, frozen=True):
    """The records from `first` to `last` would be here: retention or a loss took them (`gone`), or
    what is stored isn't what was appended (`corrupt`)."""

    partition: int
    first: int
    last: int
    why: Literal["gone", "corrupt"]


class BrowsedPartition(msgspec.Struct, frozen=True):
    """`earliest` is the first seq that is still there, `head` the last one given out."""

    partition: int
    earliest: int
    head: int


class BrowseAnswer(msgspec.Struct, frozen=True):
    """`records` go forward or backward in time, and each partition in its own order. `cursor` is
    for the next request; `more` says whether there is something for it by now, and `stopped` what
    ended this one. `scanned` records were looked at, of which `filter_errors` made the filter
    fail."""

    topic: str
    direction: Literal["forward", "backward"]
    records: list[BrowsedRecord]
    missing: list[MissingRecords]
    partitions: list[BrowsedPartition]
    cursor: str
    more: bool
    stopped: BrowseStop
    scanned: int
    filter_errors: int = 0
