"""Everything that is known of one record, put together from what everybody said.

A passive value: the verdicts (verdicts.py, outcomes.py) are made of it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from headgate.model.account import Account, Testimony
from headgate.model.delivery import SETTLING_VERDICTS
from headgate.model.event import PartitionRef
from headgate.model.evidence import (
    Attempt,
    Ended,
    GatewayAccount,
    LaneAccount,
    Outcome,
    Skip,
    Whereabouts,
)
from headgate.model.letters_api import LetterInfo
from headgate.model.topology import Owner

ENDINGS: frozenset[Outcome] = frozenset({*SETTLING_VERDICTS, "rejected", "dead", "released"})
"""What a subscriber's part of a record ends as."""


@dataclass(frozen=True)
class Facts:
    """`account` None: the coordinator couldn't be asked, for the reason in `account_error`.
    `time_ms` is when the record was appended (0: not known)."""

    ref: PartitionRef
    seq: int
    account: Account | None
    account_error: str = ""
    time_ms: int = 0

    @property
    def testimonies(self) -> list[Testimony]:
        return [] if self.account is None else self.account.testimonies

    @property
    def silent(self) -> list[str]:
        if self.account is None:
            return [f"the coordinator ({self.account_error})"]
        return self.account.silent

    @property
    def letters(self) -> list[LetterInfo]:
        return [] if self.account is None else self.account.letters

    @cached_property
    def reader(self) -> tuple[str, LaneAccount] | None:
        """The lane that reads the partition, with its router. Where two say so, a former one hasn't
        heard yet: the lane that is further counts."""
        holding = [
            (one.node, one.lane)
            for one in self.testimonies
            if one.lane is not None and one.lane.holds
        ]
        return max(holding, key=lambda one: one[1].read_seq, default=None)

    @cached_property
    def lane(self) -> LaneAccount | None:
        return None if self.reader is None else self.reader[1]

    @cached_property
    def gateways(self) -> Mapping[str, GatewayAccount]:
        return {one.node: one.gateway for one in self.testimonies if one.gateway is not None}

    @cached_property
    def standings(self) -> Mapping[str, Whereabouts]:
        """By subscription, of those that a gateway was asked about and has."""
        return {
            one.subscription: one for account in self.gateways.values() for one in account.standings
        }

    def owner_of(self, target: PartitionRef) -> Owner | None:
        """The consumer that has it, as the coordinator says."""
        owners = [] if self.account is None else self.account.owners
        return next((one for one in owners if one.ref == target), None)

    def ended(self, subscription_id: str) -> tuple[str, Ended | None]:
        """What is remembered of a subscription that has ended, and the gateway where it was."""
        for gateway, account in self.gateways.items():
            for one in account.ended:
                if one.subscription == subscription_id:
                    return gateway, one
        return "", None

    @cached_property
    def attempts(self) -> list[Attempt]:
        """The attempts that all nodes remember, each once, by time. A gateway's own word counts for
        what a lane says of it."""
        tried = dict.fromkeys(
            attempt
            for one in self.testimonies
            if one.lane is not None
            for attempt in one.lane.attempts
        )
        told = {(one.gateway, one.outcome, one.subscriptions) for one in tried}
        taken = dict.fromkeys(
            attempt
            for account in self.gateways.values()
            for attempt in account.attempts
            if (attempt.gateway, attempt.outcome, attempt.subscriptions) not in told
        )
        return sorted((*tried, *taken), key=lambda one: one.at_ms)

    def attempts_for(self, subscription_id: str) -> list[Attempt]:
        return [one for one in self.attempts if subscription_id in one.subscriptions]

    def taken_for(self, subscription_id: str, gateway_id: str) -> Attempt | None:
        """When its gateway took the record for it the last time, as far as anybody remembers: a
        lane hears of all together, and by another clock, so its word counts for what the gateway
        has forgotten."""
        account = self.gateways.get(gateway_id)
        own = _accepted(() if account is None else account.attempts, subscription_id)
        if own:
            return own[-1]
        told = _accepted(self.attempts, subscription_id)
        if account is not None:
            told = [one for one in told if one.at_ms < account.since_ms]
        return told[-1] if told else None

    def ending_for(self, subscription_id: str) -> Attempt | None:
        """The last attempt that settled the record for it, by itself or as a dead letter."""
        ended = [one for one in self.attempts_for(subscription_id) if one.outcome in ENDINGS]
        return ended[-1] if ended else None

    @property
    def skip(self) -> Skip | None:
        return None if self.account is None else self.account.skip

    @property
    def settled(self) -> int:
        """Up to where the partition is settled, as far as the nodes say."""
        partition = None if self.account is None else self.account.partition
        known = 0 if partition is None else partition.settled
        return known if self.lane is None else max(known, self.lane.settled)

    @property
    def is_settled(self) -> bool:
        return self.seq <= self.settled or (
            self.lane is not None and self.seq <= self.lane.read_seq and not self.lane.awaits
        )

    @property
    def complete_since_ms(self) -> int:
        """From when on nobody who was heard has forgotten anything; 0: nobody was."""
        since = [
            account.since_ms
            for one in self.testimonies
            for account in (one.lane, one.gateway)
            if account is not None
        ]
        return max(since, default=0)

    @property
    def remembers_all(self) -> bool:
        """Whether everything that was done with the record would be remembered by a node that was
        heard: by all that are there now, and the lane that has read it is among them."""
        since_ms = self.complete_since_ms
        is_long_enough = bool(since_ms) and since_ms <= self.time_ms
        has_read = any(one.lane is not None and one.lane.read_it for one in self.testimonies)
        return is_long_enough and not self.silent and has_read


def _accepted(attempts: Iterable[Attempt], subscription_id: str) -> list[Attempt]:
    return [
        one
        for one in attempts
        if one.outcome == "accepted" and subscription_id in one.subscriptions
    ]


def clock(at_ms: int) -> str:
    """A time as it stands in a sentence."""
    moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
