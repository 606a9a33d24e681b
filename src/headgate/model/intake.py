"""How far a connector has come in one partition: what makes its records arrive once.

A connector is one reader of an **origin** (a database's stream of changes) that feeds partitions
which any ingest node may own. Every batch it hands in carries a mark, and the partition stores how
far it is with the records, in the same transaction. So whatever was interrupted is handed in again,
and the partition leaves out what it has.

A *position* is a text that the origin gives: positions sort, byte by byte, like the changes they
stand for, and each is enough for the origin to go on behind it. The empty text comes before all.

Invariant: a stored position means that every change up to it which belongs into that partition, by
the partitioning version it is stored under, is in the log.
"""

from __future__ import annotations

import msgspec


class IntakeMark(msgspec.Struct, frozen=True, kw_only=True):
    """Who hands in a batch, and what of the origin it covers: all changes behind `after` and up to
    `upto` that belong into the partition.

    `epoch` is the connector's; `beginning` is the epoch in which it began where it now is (it was
    created, or reset), and what is stored of another beginning says nothing about this one.
    `partitions` is the count by which the sender has placed. With an empty `upto` the batch is
    empty and only claims the partition: from then on lower epochs are refused. `ends` says that the
    origin has lost what comes behind `upto`: nothing of this beginning may follow. What is stored
    of versions below `forgets_below` isn't needed any more. `snapshot` says how far the connector's
    snapshots are at `upto`, in words that only its reader knows.
    """

    connector: str
    epoch: int
    beginning: int
    partitions: int
    after: str = ""
    upto: str = ""
    ends: bool = False
    forgets_below: int = 0
    snapshot: str = ""


class IntakePosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a connector has come in a partition, by the partitioning `version` of `partitions`
    partitions. An empty `position`: it was claimed, and nothing was said of it yet. `snapshot` is
    as of `position`."""

    version: int
    partitions: int
    epoch: int
    beginning: int
    position: str
    ended: bool = False
    snapshot: str = ""
