"""What the coordinator tells a gateway that explains a record, about it and about the subscribers:
between these two, never for the public."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from headgate.model.api import TopicPartition
from headgate.model.event import PartitionRef
from headgate.model.evidence import ASKED_MAX, GatewayAccount, LaneAccount, Skip
from headgate.model.groups import Group
from headgate.model.letters_api import LetterInfo
from headgate.model.subscription import Subscription
from headgate.model.topology import Owner

ACCOUNT_PATH = "/internal/v1/account"
SUBSCRIPTIONS_PATH = "/internal/v1/subscriptions"
LISTED_MAX = 2_000
"""Subscriptions of one answer."""
LETTERS_MAX = 100


class AccountQuestion(msgspec.Struct, frozen=True):
    """`subscriptions` are asked about where they are, by gateway, `targets` of groups anywhere."""

    ref: PartitionRef
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    subscriptions: dict[str, Annotated[list[str], msgspec.Meta(max_length=ASKED_MAX)]] = {}
    targets: Annotated[list[PartitionRef], msgspec.Meta(max_length=ASKED_MAX)] = []


class Testimony(msgspec.Struct, frozen=True):
    """What one lane (of the router `node`) or gateway said."""

    node: str
    role: Literal["lane", "gateway"]
    pid: int = 0
    window: int = 0
    lane: LaneAccount | None = None
    gateway: GatewayAccount | None = None


class Account(msgspec.Struct, frozen=True):
    """`owners` are the consumers of the targets that were asked about. `silent` names the nodes
    that were asked and didn't answer, or can't be asked. `letters` are those of the record, without
    documents, of which there may be more than `LETTERS_MAX`; `letters_error` says why they aren't
    known. `skip`: when an operator went past the record without telling subscribers, if that is
    remembered."""

    partition: TopicPartition | None
    testimonies: list[Testimony] = []
    silent: list[str] = []
    letters: list[LetterInfo] = []
    letters_error: str = ""
    owners: list[Owner] = []
    skip: Skip | None = None


class SubscriptionsListed(msgspec.Struct, frozen=True):
    """Of the subscriptions to a topic, in no order that means anything, and its consumer `groups`,
    with the first of them. `next`: ask again with it as `after`; -1: there are no more.
    `registered` are all of all topics, `complete`: the coordinator has heard of all since it
    leads."""

    subscriptions: list[Subscription]
    next: int
    registered: int
    complete: bool = True
    groups: list[Group] = []
