"""The bodies of /v1/groups: what is parsed, answered, and shown in /openapi.json."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.model.api import ConsumerStatus, GroupStatus

TO = "earliest, latest, or a time such as 2026-01-31T12:00:00Z."


class GroupPartition(msgspec.Struct, frozen=True):
    """Up to where the targets of a group have processed a partition, the least and the most of
    them, and how many of its records stand behind the least: a target without records of its own
    stays where it is, so `behind_max` is the most that the group may have to process."""

    partition: int
    head: int
    lowest: int
    highest: int
    behind_max: int


class GroupTarget(msgspec.Struct, frozen=True):
    """`consumer` owns it, at `gateway`; both are empty where nobody does."""

    number: int
    consumer: str
    gateway: str
    epoch: int
    moving_to: str = ""


class GroupInfo(msgspec.Struct, frozen=True):
    topic: str
    group: str
    where: str | None
    targets: list[GroupTarget]
    consumers: list[ConsumerStatus]
    partitions: list[GroupPartition]


class GroupList(msgspec.Struct, frozen=True):
    groups: list[GroupStatus]


class ResetGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST …/reset: where the group begins, in every partition. A dry run only says what
    would happen."""

    to: Annotated[str, msgspec.Meta(description=TO)]
    dry_run: bool = False


class GroupPartitionReset(msgspec.Struct, frozen=True):
    """`next_seq` is processed next. Of the partition's records up to `repeats_max` come again and
    up to `skips_max` never come: which of them are of which target nobody has counted."""

    partition: int
    next_seq: int
    lowest: int
    highest: int
    repeats_max: int
    skips_max: int


class GroupReset(msgspec.Struct, frozen=True):
    topic: str
    group: str
    partitions: list[GroupPartitionReset]
    dry_run: bool
