"""What this gateway says to explain a record: what lanes brought, and how far each
subscriber is.

Looks at what the others know; nothing is changed by asking, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from headgate.decide.explaining.standing import stand_of
from headgate.model.control.from_coordinator import AskEvidence
from headgate.model.control.to_coordinator import Evidence
from headgate.model.event import PartitionRef
from headgate.model.evidence import ASKED_MAX, GatewayAccount, LeftOut, Whereabouts
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.groups.target import Target
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.subscriptions import Subscriptions
from headgate.telemetry import LogLine

log = structlog.get_logger()


class Telling:
    """Implements hearing.Witness."""

    def __init__(
        self,
        evidence: GatewayEvidence,
        subscriptions: Subscriptions,
        consumers: Consumers,
    ) -> None:
        self._evidence = evidence
        self._subscriptions = subscriptions
        self._consumers = consumers

    def answer(self, asked: AskEvidence) -> Evidence:
        """Whatever goes wrong with it, subscribers are none the worse."""
        try:
            return Evidence(asked.number, gateway=self._account(asked))
        except Exception:
            log.exception(LogLine.UNEXPECTED)
            return Evidence(asked.number)

    def _account(self, asked: AskEvidence) -> GatewayAccount:
        ref, seq, evidence = asked.ref, asked.seq, self._evidence
        names = asked.subscriptions[:ASKED_MAX]
        here = {
            name: one
            for name in names
            if (one := self._subscriptions.get(name)) is not None and one.closing is None
        }
        targets = self._consumers.targets_by_subscription() if here or asked.targets else {}
        wanted = set(asked.targets)
        owned = {
            name: one
            for name, target in targets.items()
            if target.owner.ref in wanted and (one := self._subscriptions.get(name)) is not None
        }
        # One look for all subscriptions: each would have to look through as much.
        said = evidence.said_of({*here, *owned}, ref, seq)
        read = evidence.read_for({*here, *owned}, ref, seq)

        def standings(some: Mapping[str, LiveSubscription]) -> tuple[Whereabouts, ...]:
            return tuple(
                self._standing(one, targets.get(name), ref, seq, said.get(name), read.get(name, 0))
                for name, one in some.items()
            )

        return GatewayAccount(
            evidence.since_ms,
            evidence.attempts(ref, seq),
            standings(here),
            evidence.former(ref, seq),
            tuple(name for name in names if name not in here),
            standings(owned),
        )

    def _standing(
        self,
        one: LiveSubscription,
        target: Target | None,
        ref: PartitionRef,
        seq: int,
        said: LeftOut | None,
        read_at_ms: int,
    ) -> Whereabouts:
        partition, feed = ref.partition, one.feed
        acknowledged = one.acknowledged_of(partition)
        if target is not None:
            acknowledged = target.processed(partition)
        slow = self._subscriptions.bounds.when_slow.of(one.subscription.priority)
        return Whereabouts(
            one.id,
            one.starts.get(partition, 0),
            feed.sent().get(partition, 0),
            stand_of(feed, partition, seq),
            "park" if one.subscription.shard else slow,
            len(feed),
            said,
            read_at_ms,
            target is not None and target.has_in_hand(partition, seq),
            acknowledged,
            target is not None and target.stopped,
            "" if target is None else target.owner.ref.topic,
            -1 if target is None else target.number,
        )
