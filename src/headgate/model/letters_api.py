"""The bodies of /v1/dead-letters: what is parsed, answered, and shown in /openapi.json."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.model.api import MAX_PARTITIONS
from headgate.model.event import Op
from headgate.model.letters import LetterReason, LetterState

LISTED_MAX = 500
CHANGED_MAX = 500
"""Letters of one answer, and of one change: whole events are in memory meanwhile."""
CHUNK = 100
ID_MAX = 2**63 - 1

LetterId = Annotated[int, msgspec.Meta(ge=1, le=ID_MAX)]
AfterId = Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)]
AGE = "An age, such as 30m, 1h or 7d."
WAIT_MAX_MS = 10_000
WAIT = "A time, such as 500ms or 2s; 10s at most."


class LetterInfo(msgspec.Struct, frozen=True):
    """A letter with its event, for a `gateway` or for a consumer `group`; the other is empty.
    `at_ms` is when it was written, `time_ms` when the event was; `document` is left out of lists
    unless it is asked for. Of one that is `damaged` only what the store knows besides the event is
    there; `error` says what can be done."""

    id: int
    state: LetterState
    reason: LetterReason
    gateway: str
    group: str
    topic: str
    partition: int
    seq: int
    event_id: str
    key: str | None
    collection: str
    op: Op
    subscriptions: list[str]
    attempts: int
    error: str
    at_ms: int
    time_ms: int
    redelivery: bool
    document: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={})] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    headers: dict[str, str] = {}
    damaged: bool = False


class LetterList(msgspec.Struct, frozen=True):
    """`more`: there are letters after `last_id`; ask for them with `after`."""

    letters: list[LetterInfo]
    last_id: int
    more: bool


class LetterFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which dead letters are meant: those that are all of this; an empty filter means every one."""

    gateway: str | None = None
    topic: str | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTITIONS)] | None = None
    key: str | None = None
    reason: LetterReason | None = None
    older_than: Annotated[str, msgspec.Meta(description=AGE)] | None = None
    newer_than: Annotated[str, msgspec.Meta(description=AGE)] | None = None
    group: str | None = None


class LetterSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of POST /v1/dead-letters/retry and …/delete: `ids` or a `filter`.

    One call changes up to `limit` letters with ids above `after`; call again with `after` set to
    the `last_id` of the answer as long as that says `more`. `dry_run` changes nothing and counts
    every letter that is meant, so it takes no `after`. A retry waits for up to `wait` to hear how
    the letters were answered."""

    ids: Annotated[list[LetterId], msgspec.Meta(max_length=CHANGED_MAX)] | None = None
    filter: LetterFilter | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=CHANGED_MAX)] = CHUNK
    after: AfterId = 0
    dry_run: bool = False
    wait: Annotated[str, msgspec.Meta(description=WAIT)] | None = None


class LettersChanged(msgspec.Struct, frozen=True):
    """How many were changed, or with `dry_run` would be. A caller that waits for letters that are
    sent again also learns how many were `delivered` to all who are subscribed now, how many are
    `dead_again`, and why (`errors`); the others are on their way. Without waiting, it learns of
    those that can't be sent at all."""

    count: int
    last_id: int
    more: bool
    dry_run: bool = False
    delivered: int | msgspec.UnsetType = msgspec.UNSET
    dead_again: int | msgspec.UnsetType = msgspec.UNSET
    errors: list[str] | msgspec.UnsetType = msgspec.UNSET
