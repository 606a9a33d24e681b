"""The live subscriptions, and how far the lanes have adopted them.

Every change makes a new revision. A subscriber may be told "subscribed" when the adoption floor has
reached its revision: then every lane that may read a record matches with it.

Invariants: revisions and the floor only grow; the floor stays put while a lane may be reading that
nobody hears from (`holds`), and while the registry is incomplete after a restart (`awaited`,
`lost`). No lane ever matches without a subscription of a gateway in `kept` that the gateway hasn't
ended itself; one whose subscriptions did end otherwise is told so before it registers anything
again, also by the next coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.decide.coordination.registry.lifetimes import Lifetimes
from headgate.decide.coordination.registry.quotas import Costs, Quotas, Tenants
from headgate.decide.filter.plan import compile_filter
from headgate.errors import InvalidFilter
from headgate.model.control.from_coordinator import SubscriptionChanges, SubscriptionSnapshot
from headgate.model.groups import MAX_TARGETS
from headgate.model.subscription import Subscription

REVISIONS_PER_BOOT = 1 << 32
"""Revisions of one boot of the coordinator stay below those of the next."""
PART_SIZE = 2_000
"""Subscriptions per part of a snapshot: small enough to write and read without a pause."""
FOREIGN = "the subscription belongs to another gateway"


@dataclass(frozen=True, slots=True)
class Upserted:
    """`change` makes the accepted ones live (None: nothing new); `refused` says why not by id, of
    which those in `over_quota` only found no room."""

    change: SubscriptionChanges | None
    refused: dict[str, str]
    over_quota: tuple[str, ...] = ()


@dataclass(slots=True)
class Registry:
    boot: int
    awaited: set[str]
    """Gateways that held subscriptions before the restart and have not registered again."""
    quotas: Quotas = field(default_factory=Quotas)
    lost: bool = False
    """Nobody has said yet which gateways there were."""
    part_size: int = PART_SIZE
    revision: int = field(init=False)
    floor: int = field(init=False, default=0)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    """The gateways that have missed nothing since they named all their subscriptions, with their
    incarnation. Known to the next coordinator: taking one out is stored before a lane hears of
    it."""
    _lacking: set[str] = field(default_factory=set)
    """Gateways of which something was refused or has ended since they were last welcomed, which
    they may not have heard."""
    _of_gateway: dict[str, set[str]] = field(default_factory=dict)
    _stale: dict[str, set[str]] = field(default_factory=dict)
    """Per gateway that came back: the ids it has not named again yet."""
    _tenants: Tenants = field(default_factory=Tenants)
    costs: Costs = field(default_factory=Costs)
    _lifetimes: Lifetimes = field(default_factory=Lifetimes)
    _snapshot: tuple[SubscriptionSnapshot, ...] = ()

    def __post_init__(self) -> None:
        self.revision = self.boot * REVISIONS_PER_BOOT + 1

    @property
    def complete(self) -> bool:
        return not self.awaited and not self.lost

    def raise_above(self, revision: int, *, foreign: bool = False) -> bool:
        """Start above a revision that a node reports (this coordinator has lost its state).

        A `foreign` one was given out by another coordinator: the same number means something else.
        """
        if revision < self.revision or (revision == self.revision and not foreign):
            return False
        self.revision = revision + 1
        return True

    def snapshot(self) -> tuple[SubscriptionSnapshot, ...]:
        """The parts of all there is; the same values for every lane, so that they are encoded
        once for those that come together."""
        if not self._snapshot or self._snapshot[0].revision != self.revision:
            everything = tuple(self.subscriptions.values())
            begins = range(0, len(everything) or 1, self.part_size)
            self._snapshot = tuple(
                SubscriptionSnapshot(
                    self.revision, everything[at : at + self.part_size], more=at != begins[-1]
                )
                for at in begins
            )
        return self._snapshot

    def count(self, gateway_id: str) -> int:
        """How many subscriptions a gateway has."""
        return len(self._of_gateway.get(gateway_id, ()))

    def holders(self) -> Collection[str]:
        """The gateways that have subscriptions, or might name them again."""
        return {*self._of_gateway, *self._stale}

    def contradictions(self) -> Iterator[str]:
        """Where tables and sums don't agree with the subscriptions themselves."""
        by_gateway: dict[str, set[str]] = {}
        for name, one in self.subscriptions.items():
            by_gateway.setdefault(one.gateway_id, set()).add(name)
        if by_gateway != self._of_gateway:
            yield f"gateways have {by_gateway}, and {self._of_gateway} is kept"
        for gateway_id, names in self._stale.items():
            if not names <= self._of_gateway.get(gateway_id, set()):
                yield f"{gateway_id} is to name {names} again, which it doesn't have"
        yield from self._tenants.contradictions(self.subscriptions.values())
        yield from self.costs.contradictions(self.subscriptions.values())
        yield from self._lifetimes.contradictions(self.subscriptions.values())

    # --- gateways ------------------------------------------------------------------------------

    def gateway_returns(self, gateway_id: str) -> None:
        """The gateway is welcomed. The subscriptions it had are doubtful until it has named them
        again."""
        self._lacking.discard(gateway_id)
        self._stale[gateway_id] = self._of_gateway.get(gateway_id, set()).copy()

    def gateway_comes(self, gateway_id: str, incarnation: str) -> None:
        """Lanes send to this process from now on, also what another one of its name should get."""
        if not self.has_kept(gateway_id, incarnation):
            self._drop([gateway_id])

    def has_kept(self, gateway_id: str, incarnation: str) -> bool:
        """Whether everything that this very process was told still holds; else it is told so until
        it has named all its subscriptions: an answer may be lost on its way."""
        return self.kept.get(gateway_id) == incarnation

    def upsert(
        self,
        gateway_id: str,
        subscriptions: Iterable[Subscription],
        now_ms: int,
        *,
        new: AbstractSet[str] = frozenset(),
    ) -> Upserted:
        """`new` are the ids of those that nobody has been told are there."""
        upserts: list[Subscription] = []
        refused: dict[str, str] = {}
        over_quota: list[str] = []
        stale = self._stale.get(gateway_id, set())
        owned = self._of_gateway.setdefault(gateway_id, set())
        # After a restart, the subscriptions that it names were taken up before those of gateways
        # that have come meanwhile; but for what came to it while there was no coordinator to ask.
        was_here = gateway_id in self.kept and gateway_id in self.awaited
        # What a gateway hasn't named again since it is back is about to end.
        stale_us = sum(self.subscriptions[name].charge_us for name in stale)
        for subscription in map(_with_cost, subscriptions):
            if isinstance(subscription, _Refused):
                refused[subscription.id] = subscription.reason
                continue
            known = self.subscriptions.get(subscription.id)
            owner = gateway_id if known is None else known.gateway_id
            if subscription.gateway_id != gateway_id or owner != gateway_id:
                refused[subscription.id] = FOREIGN
                continue
            if reason := _impossible(subscription):
                refused[subscription.id] = reason
                continue
            if known is not None and subscription.id in stale:
                stale.discard(subscription.id)
                stale_us -= known.charge_us
            if known != subscription:
                reason = self._refusal(known, subscription, len(owned), len(stale))
                reason = reason or self._cost_refusal(known, subscription, stale_us)
                if reason and (not was_here or subscription.id in new):
                    refused[subscription.id] = reason
                    over_quota.append(subscription.id)
                    continue
                upserts.append(self._put(known, subscription.sharing_names()))
            if subscription.ttl_ms:
                self._lifetimes.begin(subscription, now_ms)
        if not owned:
            del self._of_gateway[gateway_id]
        if refused:
            self._lacking.add(gateway_id)
        return Upserted(self._changed(upserts, ()), refused, tuple(over_quota))

    def remove(self, gateway_id: str, ids: Iterable[str]) -> SubscriptionChanges | None:
        owned = self._of_gateway.get(gateway_id, set())
        return self._end([name for name in dict.fromkeys(ids) if name in owned])

    def registration_complete(
        self, gateway_id: str, incarnation: str
    ) -> SubscriptionChanges | None:
        """The gateway has named all its subscriptions: any others that it had are over. A gateway
        that may have missed records isn't kept: should its stream break now, it has to look into
        the log."""
        self.awaited.discard(gateway_id)
        if gateway_id in self._lacking:
            self._drop([gateway_id])
        else:
            self.kept[gateway_id] = incarnation
        return self._end(self._stale.pop(gateway_id, ()))

    def gateway_gone(self, gateway_id: str) -> SubscriptionChanges | None:
        self.awaited.discard(gateway_id)
        self._drop([gateway_id])
        self._lacking.discard(gateway_id)
        self._stale.pop(gateway_id, None)
        self._lifetimes.forget(gateway_id)
        return self._end(tuple(self._of_gateway.get(gateway_id, ())))

    def topic_gone(self, topic: str) -> SubscriptionChanges | None:
        ended = [s for s in self.subscriptions.values() if s.topic == topic]
        # One that is away may come back to a topic of the same name, and must not trust its lanes;
        # what those have that haven't registered again since a restart isn't known.
        self._drop([*(s.gateway_id for s in ended), *self.awaited])
        return self._end([s.id for s in ended])

    # --- time ----------------------------------------------------------------------------------

    def renew(self, gateway_id: str, now_ms: int) -> None:
        """The gateway still wants all it has."""
        self._lifetimes.renew(gateway_id, now_ms)

    def expire(self, now_ms: int) -> tuple[SubscriptionChanges | None, list[str]]:
        """End what nobody renewed in time; returns also whose it was."""
        ended = self._lifetimes.ended(now_ms)
        self._drop(ended)
        return self._end([name for names in ended.values() for name in names]), list(ended)

    def forgive(self, absent_ms: int) -> None:
        self._lifetimes.forgive(absent_ms)

    # --- lanes ---------------------------------------------------------------------------------

    def advance_floor(self, adopted: Iterable[int], *, holds: bool) -> bool:
        """Move the floor up to what every reading lane has adopted; True when it moved."""
        if holds or not self.complete:
            return False
        floor = min(adopted, default=self.revision)
        if floor <= self.floor:
            return False
        self.floor = floor
        return True

    # --- parts ---------------------------------------------------------------------------------

    def _drop(self, gateway_ids: Iterable[str]) -> None:
        for gateway_id in gateway_ids:
            self.kept.pop(gateway_id, None)
            self._lacking.add(gateway_id)

    def _refusal(
        self, known: Subscription | None, wanted: Subscription, owned: int, stale: int
    ) -> str:
        of_tenant = self._tenants[wanted.tenant]
        if known is None:
            return self.quotas.refusal(
                wanted,
                of_gateway=owned - stale,
                of_tenant=of_tenant,
                in_all=len(self.subscriptions) - stale,
            )
        if known.tenant == wanted.tenant:
            return ""
        return self.quotas.tenant_refusal(wanted.tenant, of_tenant)

    def _cost_refusal(self, known: Subscription | None, wanted: Subscription, stale_us: int) -> str:
        before_us = known.charge_us if known is not None else 0
        same_tenant = known is not None and known.tenant == wanted.tenant
        if wanted.charge_us <= before_us and same_tenant:
            return ""
        return self.quotas.cost_refusal(
            wanted,
            of_gateway_us=self.costs.of_gateway(wanted.gateway_id) - stale_us - before_us,
            of_tenant_us=self.costs.of_tenant(wanted.tenant) - (before_us if same_tenant else 0),
        )

    def _put(self, known: Subscription | None, subscription: Subscription) -> Subscription:
        if known is not None:
            self._tenants.drop(known.tenant)
            self.costs.drop(known)
            self._lifetimes.end(known)
        self.costs.add(subscription)
        self._tenants.add(subscription.tenant)
        self.subscriptions[subscription.id] = subscription
        self._of_gateway[subscription.gateway_id].add(subscription.id)
        return subscription

    def _end(self, ids: Iterable[str]) -> SubscriptionChanges | None:
        ended = [self.subscriptions.pop(name) for name in ids]
        for subscription in ended:
            self._tenants.drop(subscription.tenant)
            self.costs.drop(subscription)
            self._lifetimes.end(subscription)
            owned = self._of_gateway[subscription.gateway_id]
            owned.discard(subscription.id)
            self._stale.get(subscription.gateway_id, set()).discard(subscription.id)
            if not owned:
                del self._of_gateway[subscription.gateway_id]
        return self._changed((), [subscription.id for subscription in ended])

    def _changed(
        self, upserts: Iterable[Subscription], removals: Iterable[str]
    ) -> SubscriptionChanges | None:
        upserts, removals = tuple(upserts), tuple(removals)
        if not upserts and not removals:
            return None
        self._snapshot = ()
        self.revision += 1
        return SubscriptionChanges(self.revision, upserts, removals)


@dataclass(frozen=True, slots=True)
class _Refused:
    id: str
    reason: str


def _with_cost(wanted: Subscription) -> Subscription | _Refused:
    """A gateway that is older than costs names none: then its filter is looked at here, and one
    that nobody would take today is refused before a lane hears of it."""
    if wanted.where is None or wanted.cost_us:
        return wanted
    try:
        return replace(wanted, cost_us=compile_filter(wanted.where).cost_us)
    except InvalidFilter as error:
        return _Refused(wanted.id, error.message)


def _impossible(wanted: Subscription) -> str:
    """Why nobody can subscribe like that; empty when one can."""
    if wanted.ttl_ms < 0:
        return f"a time-to-live can't be {wanted.ttl_ms} ms"
    if wanted.shard is not None:
        count, number = wanted.shard
        if not (1 <= count <= MAX_TARGETS and 0 <= number < count):
            return f"there is no shard {number} of {count}"
    return ""
