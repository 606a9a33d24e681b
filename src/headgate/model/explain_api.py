"""The answer of /v1/explain: where a record is, what became of it, and why each subscription got it
or not.

`status` is for programs, `why` the same for people, in a sentence. What is known at any time is the
record's place, and who wants it now; what was tried is known only while lanes and gateways remember
it (`evidence`), and the answer says where that is not so.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from headgate.model.browse_api import BrowsedRecord
from headgate.model.event import Op
from headgate.model.evidence import Attempt
from headgate.model.letters_api import LetterInfo

LIMIT_DEFAULT = 20
LIMIT_MAX = 500
EXAMINED_MAX = 20_000
"""Subscriptions that one request asks about the record."""
VALUE_CHARS_MAX = 200
"""Of one value that is shown beside a condition."""

RecordStatus = Literal[
    "unread", "on_the_way", "settled", "in_log", "gone", "to_come", "corrupt", "missing", "dry_run"
]
"""Of the record: no lane has read it; one has, and a gateway must still answer for it; settled.
`gone`: the log had it, and retention took it; `to_come`: nothing has that place yet; `missing`: it
would be there and isn't, so it was lost or left out; `in_log`: it is there, but the principal that
asks may not see what became of it."""

RecordOutcome = Literal[
    "acknowledged", "parked", "dead", "released", "unmatched", "told", "skipped", "unknown", ""
]
"""As what it is settled, the worst of it; `told`: it was passed over, or isn't a record but a
marker, and subscribers are told to resync; `skipped`: an operator went past it, and nobody was
told; `unknown`: nobody remembers. Empty before it is settled."""

Status = Literal[
    "delivered",
    "processed",
    "in_hand",
    "waiting",
    "catching_up",
    "held",
    "on_the_way",
    "unread",
    "parked",
    "dead",
    "skipped",
    "before",
    "repeat",
    "released",
    "other_target",
    "not_matched",
    "filter_failed",
    "ended",
    "no_consumer",
    "matches",
    "unknown",
]
"""Of a subscription or a group and the record. `matches`: it would get it (a dry run, or a filter
that nobody is subscribed with). `before`: it began behind the record. `skipped`: it was left out;
the subscriber was told to resync, unless an operator wanted it otherwise. `dead`: a dead letter was
made of it, which may be deleted by now. `repeat`: it had the same event from another place."""

Verdict = Literal["match", "no match", "failed"]
"""Of a filter; empty where it couldn't be asked."""


class FieldValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the record has in a field that a condition looks at, as JSON of VALUE_CHARS_MAX at most;
    `missing`: it has no such field."""

    field: str
    value: str = ""
    missing: bool = False
    masked: bool = False


class ExplainedCondition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of a filter. Those with the same `alternative` must hold together (0: there is but
    one). `kind` names what a missing field or a value of another type makes of it, if it does."""

    condition: str
    verdict: Verdict
    values: list[FieldValue] = []
    alternative: int = 0
    why: str = ""


class ExplainedSubscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """`left`: the record matched before this change and doesn't any more, which the subscriber is
    told. `route` says by which gateway, and why that one. `group` and `target` of a consumer
    group's."""

    id: str
    status: Status
    why: str
    verdict: Verdict | Literal[""] = ""
    gateway: str = ""
    where: str | None = None
    priority: str = "normal"
    conditions: list[ExplainedCondition] = []
    route: str = ""
    left: bool = False
    group: str = ""
    target: int = -1
    attempts: list[Attempt] = []


class ExplainedGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """A consumer group of the topic: the `target` that has the record's key (-1: all of them have
    it), and its `consumer`. `position` is up to where that target has processed the partition
    (-1: not known)."""

    name: str
    status: Status
    why: str
    target: int = -1
    consumer: str = ""
    gateway: str = ""
    verdict: Verdict | Literal[""] = ""
    where: str | None = None
    conditions: list[ExplainedCondition] = []
    position: int = -1


class ExplainedPlace(msgspec.Struct, frozen=True):
    """Where a record is."""

    topic: str
    partition: int
    seq: int


class ExplainedEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose memory the answer rests on. `complete_since_ms`: whatever was tried since then is here,
    as far as those are the processes that did it (0: nobody remembers anything); `silent` were
    asked, or would have been, and said nothing. `notes` say what follows from that."""

    complete_since_ms: int = 0
    asked: int = 0
    silent: list[str] = []
    notes: list[str] = []


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """`subscriptions` are those that were asked about, else first who gets the record and then
    others, `examined` of them in all; `more`: not all were looked at, or shown. `elsewhere`: the
    same event id is in the log there, too. `owner` of the partition's log, `router` that reads it.
    """

    status: RecordStatus
    why: str
    topic: str
    partition: int
    seq: int
    outcome: RecordOutcome = ""
    record: BrowsedRecord | None = None
    owner: str = ""
    router: str = ""
    head: int = 0
    settled: int = 0
    partition_state: str = ""
    partition_reason: str = ""
    subscriptions: list[ExplainedSubscription] = []
    groups: list[ExplainedGroup] = []
    letters: list[LetterInfo] = []
    letters_error: str = ""
    attempts: list[Attempt] = []
    matched: int = 0
    examined: int = 0
    more: bool = False
    elsewhere: list[ExplainedPlace] = []
    evidence: ExplainedEvidence = ExplainedEvidence()


class DryRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/explain: a document that is not produced. `earlier` is the state before the
    change, where a source would give it. `where` and `subscription` as in GET."""

    topic: str
    document: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
    key: str | None = None
    collection: str = ""
    op: Op = "insert"
    earlier: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})] | None = (
        None
    )
    subscription: str | None = None
    where: str | None = None
    show: Literal["all", "matching"] = "all"
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT
