"""The registry against naive books: whatever happens in whatever order, it holds exactly what was
accepted and has not ended, the changes add up to it, and so do the parts of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.decide.coordination.registry.quotas import Quotas
from headgate.decide.coordination.registry.registry import Registry
from headgate.decide.coordination.views.filter_status import costliest
from headgate.decide.filter.plan import compile_filter
from headgate.model.control.from_coordinator import SubscriptionChanges
from headgate.model.subscription import Subscription

GATEWAYS = ("gateway-1", "gateway-2")
QUOTAS = Quotas(
    per_gateway=3, per_tenant=2, total=5, cost_per_gateway_us=100, cost_per_tenant_us=70
)


def subscription(
    name: str, gateway: str = "gateway-1", *, tenant: str = "", ttl_ms: int = 0, where: str = "a"
) -> Subscription:
    cost_us = compile_filter(where).cost_us
    return Subscription(
        name, gateway, "flights", where, tenant=tenant, ttl_ms=ttl_ms, cost_us=cost_us
    )


def several(count: int, gateway: str = "gateway-1", *, tenant: str = "") -> list[Subscription]:
    return [subscription(f"{gateway}/{n}", gateway, tenant=tenant) for n in range(count)]


class TestQuotas:
    @pytest.mark.parametrize(
        ("before", "wanted", "sentence"),
        [
            pytest.param(
                several(3),
                subscription("one more"),
                "gateway gateway-1 has 3 subscriptions, the most it may "
                "(subscriptions.max_per_gateway); try again when others have ended, or raise it",
                id="per gateway",
            ),
            pytest.param(
                several(2, "gateway-2", tenant="acme"),
                subscription("one more", tenant="acme"),
                "tenant acme has 2 subscriptions, the most it may "
                "(subscriptions.max_per_tenant); try again when others have ended, or raise it",
                id="per tenant, whatever the gateway",
            ),
            pytest.param(
                [*several(3, "gateway-2"), *several(2, "gateway-3")],
                subscription("one more"),
                "this system has 5 subscriptions, the most it may "
                "(subscriptions.max_total); try again when others have ended, or raise it",
                id="in all",
            ),
        ],
    )
    def test_one_more_than_fit_is_refused_in_a_sentence_that_names_the_quota(
        self, before: list[Subscription], wanted: Subscription, sentence: str
    ) -> None:
        registry = filled(before)
        revision = registry.revision
        done = registry.upsert("gateway-1", [wanted], 0)
        assert done.refused == {"one more": sentence}
        assert done.over_quota == ("one more",)
        assert done.change is None
        assert registry.revision == revision

    def test_of_a_bulk_as_many_as_fit_are_taken(self) -> None:
        registry = filled(())
        done = registry.upsert("gateway-1", several(5), 0)
        assert done.change is not None
        assert [s.id for s in done.change.upserts] == [f"gateway-1/{n}" for n in range(3)]
        assert done.over_quota == ("gateway-1/3", "gateway-1/4")

    def test_what_is_there_may_change_also_when_all_is_full(self) -> None:
        registry = filled(several(3))
        done = registry.upsert("gateway-1", [subscription("gateway-1/0", where="b")], 0)
        assert not done.refused
        assert done.change is not None

    def test_whatever_ends_makes_room(self) -> None:
        registry = filled(several(3))
        registry.remove("gateway-1", ["gateway-1/1"])
        assert not registry.upsert("gateway-1", [subscription("new")], 0).refused

    def test_nobody_is_no_tenant(self) -> None:
        assert len(filled([*several(3, "gateway-1"), *several(2, "gateway-2")]).subscriptions) == 5

    def test_a_gateway_that_is_back_has_room_for_what_it_names_instead_of_the_old(self) -> None:
        registry = filled(several(3))
        registry.gateway_returns("gateway-1")
        fresh = [subscription(f"fresh {n}") for n in range(3)]
        assert not registry.upsert("gateway-1", fresh, 0).refused
        registry.registration_complete("gateway-1", "a")
        assert set(registry.subscriptions) == {s.id for s in fresh}

    def test_somebody_elses_id_is_refused_for_another_reason(self) -> None:
        registry = filled(several(1))
        stolen = subscription("gateway-1/0", "gateway-2")
        done = registry.upsert("gateway-2", [stolen], 0)
        assert done.refused == {"gateway-1/0": "the subscription belongs to another gateway"}
        assert done.over_quota == ()


class TestKept:
    """A gateway is kept only where it knows of everything that it lacks."""

    def test_not_while_something_that_it_has_was_refused(self) -> None:
        """Its answer may be lost, and what was refused be accepted the next time."""
        others = several(QUOTAS.per_tenant, "gateway-2", tenant="acme")
        registry, mine = filled(others), subscription("s", tenant="acme")
        registry.gateway_returns("gateway-1")
        assert registry.upsert("gateway-1", [mine], 0).refused
        registry.registration_complete("gateway-1", "a")
        assert not registry.has_kept("gateway-1", "a")
        registry.remove("gateway-2", [one.id for one in others])
        registry.gateway_returns("gateway-1")
        assert not registry.upsert("gateway-1", [mine], 0).refused
        registry.registration_complete("gateway-1", "a")
        assert registry.has_kept("gateway-1", "a")

    def test_nobody_who_comes_after_a_restart_takes_the_place_of_who_was_there(self) -> None:
        registry, mine = Registry(1, {"gateway-1"}, QUOTAS), subscription("s", tenant="acme")
        registry.kept["gateway-1"] = "a"
        for one in several(QUOTAS.per_tenant, "gateway-2", tenant="acme"):
            assert not registry.upsert("gateway-2", [one], 0).refused
        registry.gateway_returns("gateway-1")
        assert not registry.upsert("gateway-1", [mine], 0).refused
        registry.registration_complete("gateway-1", "a")
        late = subscription("late", tenant="acme")
        assert registry.upsert("gateway-1", [late], 0).over_quota == ("late",)

    def test_what_came_while_nobody_was_there_to_ask_has_no_place_after_a_restart(self) -> None:
        registry = Registry(1, {"gateway-1"}, QUOTAS)
        registry.kept["gateway-1"] = "a"
        registry.gateway_returns("gateway-1")
        were_here = several(QUOTAS.per_gateway)
        named = [*were_here, subscription("late")]
        done = registry.upsert("gateway-1", named, 0, new={"late"})
        assert done.over_quota == ("late",)
        assert set(registry.subscriptions) == {one.id for one in were_here}

    def test_not_while_a_topic_was_deleted_before_it_had_named_all(self) -> None:
        """What it is told of that may be lost, and the topic be there again."""
        registry = filled([subscription("s")])
        registry.gateway_returns("gateway-1")
        registry.upsert("gateway-1", [subscription("s")], 0)
        registry.topic_gone("flights")
        registry.registration_complete("gateway-1", "a")
        assert not registry.has_kept("gateway-1", "a")


class TestTimeToLive:
    def test_it_ends_when_its_gateway_does_not_renew(self) -> None:
        registry = Registry(1, set())
        lasting, passing = subscription("lasting"), subscription("passing", ttl_ms=100)
        registry.upsert("gateway-1", [lasting, passing], 1_000)
        registry.registration_complete("gateway-1", "a")
        assert registry.expire(1_099) == (None, [])
        assert registry.has_kept("gateway-1", "a")
        change, gateways = registry.expire(1_100)
        assert change == SubscriptionChanges(registry.revision, (), ("passing",))
        assert gateways == ["gateway-1"]
        assert not registry.has_kept("gateway-1", "a")
        assert registry.expire(9_999) == (None, [])

    def test_one_renewal_is_for_all_of_a_gateway_and_for_no_other(self) -> None:
        registry = Registry(1, set())
        for gateway in GATEWAYS:
            mine = [subscription(f"{gateway}/{n}", gateway, ttl_ms=100 + n) for n in range(3)]
            registry.upsert(gateway, mine, 0)
        registry.renew("gateway-1", 90)
        assert registry.expire(105)[1] == ["gateway-2"]
        assert {s.gateway_id for s in registry.subscriptions.values()} == {"gateway-1"}

    def test_registering_again_renews_too(self) -> None:
        registry = Registry(1, set())
        one = subscription("one", ttl_ms=100)
        registry.upsert("gateway-1", [one], 0)
        assert registry.upsert("gateway-1", [one], 90).change is None
        assert registry.expire(189) == (None, [])
        assert registry.expire(190)[1] == ["gateway-1"]

    def test_the_time_in_which_the_coordinator_stood_still_does_not_count(self) -> None:
        registry = Registry(1, set())
        registry.upsert("gateway-1", [subscription("one", ttl_ms=100)], 0)
        registry.renew("gateway-1", 0)
        registry.forgive(50)
        assert registry.expire(149) == (None, [])
        assert registry.expire(150)[1] == ["gateway-1"]


class TestSnapshots:
    @pytest.mark.parametrize(
        ("count", "sizes"),
        [
            pytest.param(0, [0], id="an empty registry is one part"),
            pytest.param(2, [2], id="exactly one part"),
            pytest.param(5, [2, 2, 1], id="the last part is what is left"),
        ],
    )
    def test_a_snapshot_comes_in_parts(self, count: int, sizes: list[int]) -> None:
        registry = Registry(1, set(), part_size=2)
        registry.upsert("gateway-1", several(count), 0)
        parts = registry.snapshot()
        assert [len(part.subscriptions) for part in parts] == sizes
        assert [part.more for part in parts] == [True] * (len(sizes) - 1) + [False]
        assert {part.revision for part in parts} == {registry.revision}

    def test_it_is_the_same_one_until_something_changes(self) -> None:
        registry = filled(several(1))
        first = registry.snapshot()
        assert registry.snapshot() is first
        registry.upsert("gateway-1", [subscription("another")], 0)
        assert len(registry.snapshot()[0].subscriptions) == 2


class TestBudgets:
    """What filters may cost together, of a gateway and of a tenant."""

    budget = Quotas(cost_per_gateway_us=100, cost_per_tenant_us=60)

    @staticmethod
    def costly(name: str, cost_us: int, gateway: str = "g", tenant: str = "") -> Subscription:
        return Subscription(name, gateway, "t", "a", tenant=tenant, cost_us=cost_us)

    def holding(self, *subscriptions: Subscription) -> Registry:
        registry = Registry(1, set(), self.budget)
        for one in subscriptions:
            assert not registry.upsert(one.gateway_id, [one], 0).refused
        return registry

    def test_a_filter_beyond_its_gateways_budget_is_refused_with_the_numbers(self) -> None:
        registry = self.holding(self.costly("s", 80))
        done = registry.upsert("g", [self.costly("one more", 30)], 0)
        assert done.refused == {
            "one more": "the filter may cost 30 µs per document, and those of gateway g cost 80 of "
            "the 100 they may together (subscriptions.max_cost_per_gateway); ask for less, end "
            "others, or raise it"
        }
        assert done.over_quota == ("one more",)
        assert not registry.upsert("g", [self.costly("fits", 20)], 0).refused
        assert not registry.upsert("other", [self.costly("x", 30, "other")], 0).refused

    def test_a_tenants_budget_counts_at_all_gateways(self) -> None:
        registry = self.holding(self.costly("s", 50, "other", "acme"))
        done = registry.upsert("g", [self.costly("one more", 20, tenant="acme")], 0)
        assert "those of tenant acme cost 50 of the 60" in done.refused["one more"]
        assert "subscriptions.max_cost_per_tenant" in done.refused["one more"]

    def test_what_ends_makes_room(self) -> None:
        registry = self.holding(self.costly("s", 50, tenant="acme"))
        registry.remove("g", ["s"])
        assert not registry.upsert("g", [self.costly("new", 60, tenant="acme")], 0).refused
        assert list(registry.contradictions()) == []

    def test_a_change_counts_instead_of_what_was_there(self) -> None:
        registry = self.holding(self.costly("s", 90))
        assert not registry.upsert("g", [self.costly("s", 100)], 0).refused
        assert registry.upsert("g", [self.costly("s", 101)], 0).over_quota == ("s",)
        assert registry.subscriptions["s"].cost_us == 100
        assert registry.costs.of_gateway("g") == 100

    def test_the_targets_of_a_group_count_as_one(self) -> None:
        shards = [Subscription(f"s{n}", "g", "t", "a", shard=(8, n), cost_us=100) for n in range(8)]
        registry = self.holding()
        assert registry.upsert("g", shards, 0).over_quota == ("s7",)  # 13 µs each, rounded up

    def test_what_a_gateway_has_not_named_again_takes_no_room(self) -> None:
        registry = self.holding(self.costly("s", 90))
        registry.gateway_returns("g")
        assert not registry.upsert("g", [self.costly("new", 90)], 0).refused
        registry.registration_complete("g", "a")
        assert registry.costs.of_gateway("g") == 90
        assert list(registry.contradictions()) == []

    def test_without_a_filter_there_is_always_room(self) -> None:
        registry = self.holding(self.costly("s", 100))
        assert not registry.upsert("g", [Subscription("all", "g", "t")], 0).refused

    def test_a_gateway_that_names_no_costs_is_looked_after(self) -> None:
        """One of an older release: its filters are looked at here, and a filter that nobody would
        take today is refused before any lane hears of it."""
        too_much = " || ".join('t.matches("a[ab]{90}c")' for _ in range(40))
        registry = self.holding()
        plain = Subscription("plain", "g", "t", "a == 1")
        done = registry.upsert("g", [plain, Subscription("worst", "g", "t", too_much)], 0)
        assert "may cost" in done.refused["worst"]
        assert done.over_quota == ()
        assert registry.subscriptions["plain"].cost_us == compile_filter("a == 1").cost_us
        assert registry.upsert("g", [plain], 0).change is None

    def test_the_costliest_are_named_by_what_they_cost_together(self) -> None:
        registry = Registry(1, set())
        cheap = [self.costly(f"c{n}", 60, f"g{n % 7}", "acme") for n in range(20)]
        dear = Subscription("dear", "g", "t", "b", cost_us=900)
        for one in (*cheap, dear, self.costly("plain", 12)):
            registry.upsert(one.gateway_id, [one], 0)
        first, second = costliest(registry.costs)
        assert (first.where, first.cost_us, first.together_us, first.subscriptions) == (
            "a", 60, 1_200, 20,
        )  # fmt: skip
        assert first.gateways == ["g0", "g1", "g2", "g3", "g4"]
        assert first.tenants == ["acme"]
        assert (second.where, second.together_us, second.tenants) == ("b", 900, [])


def test_sharing_names_loses_nothing() -> None:
    one = Subscription("s", "g", "t", "w", "high", "acme", 5, (4, 1), 12)
    assert all(getattr(one, f.name) != f.default for f in msgspec.structs.fields(Subscription))
    assert one.sharing_names() == one


def filled(subscriptions: Sequence[Subscription]) -> Registry:
    registry = Registry(1, set(), QUOTAS)
    for one in subscriptions:
        assert not registry.upsert(one.gateway_id, [one], 0).refused
    return registry


# --- any order of anything -----------------------------------------------------------------------


@dataclass
class Book:
    """One subscription as a bookkeeper would write it down."""

    subscription: Subscription
    begun_ms: int
    stale: bool = False


@dataclass
class Books:
    entries: dict[str, Book] = field(default_factory=dict)
    renewed_ms: dict[str, int] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    """Gateways that may not know of all that they lack."""

    def of(self, gateway: str) -> list[Book]:
        return [b for b in self.entries.values() if b.subscription.gateway_id == gateway]

    def accepts(self, wanted: Subscription, gateway: str) -> bool:
        known = self.entries.get(wanted.id)
        if wanted.gateway_id != gateway:
            return False
        if known is not None and known.subscription.gateway_id != gateway:
            return False
        others = [b.subscription for name, b in self.entries.items() if name != wanted.id]
        same_tenant = known is not None and known.subscription.tenant == wanted.tenant
        of_tenant = sum(o.tenant == wanted.tenant for o in others)
        if wanted.tenant and not same_tenant and of_tenant >= QUOTAS.per_tenant:
            return False
        before_us = known.subscription.cost_us if known is not None else 0
        if wanted.cost_us > before_us or not same_tenant:
            named = [b.subscription for b in self.of(gateway) if not b.stale]
            of_gateway_us = sum(o.cost_us for o in named if o.id != wanted.id)
            of_tenant_us = sum(o.cost_us for o in others if o.tenant == wanted.tenant)
            if wanted.cost_us and of_gateway_us + wanted.cost_us > QUOTAS.cost_per_gateway_us:
                return False
            beyond = of_tenant_us + wanted.cost_us > QUOTAS.cost_per_tenant_us
            if wanted.cost_us and wanted.tenant and beyond:
                return False
        if known is not None:
            return True
        mine = self.of(gateway)
        stale = sum(b.stale for b in mine)
        return len(mine) - stale < QUOTAS.per_gateway and len(others) - stale < QUOTAS.total

    def ended(self, now_ms: int) -> set[str]:
        return {
            name
            for name, book in self.entries.items()
            if (ttl_ms := book.subscription.ttl_ms)
            and now_ms - book.begun_ms >= ttl_ms
            and now_ms - self.renewed_ms.get(book.subscription.gateway_id, -ttl_ms) >= ttl_ms
        }


some_gateway = st.sampled_from(GATEWAYS)
some_id = st.sampled_from(["a", "b", "c", "d", "e", "f", "g"])
some_subscription = st.builds(
    lambda one, cost_us: msgspec.structs.replace(one, cost_us=cost_us if one.where else 0),
    st.builds(
        Subscription,
        id=some_id,
        gateway_id=some_gateway,
        topic=st.sampled_from(["flights", "trains"]),
        where=st.sampled_from([None, "x"]),
        tenant=st.sampled_from(["", "acme", "umbrella"]),
        ttl_ms=st.sampled_from([0, 100, 200]),
    ),
    st.sampled_from([11, 40, 60]),
)


class RegistryMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.registry = Registry(1, set(), QUOTAS, part_size=2)
        self.books = Books()
        self.now_ms = 0
        self.lane: dict[str, Subscription] = {}
        self.revision = self.registry.revision

    def took(self, change: SubscriptionChanges | None) -> None:
        """What a lane makes of it."""
        if change is None:
            assert self.registry.revision == self.revision
            return
        assert change.revision == self.registry.revision > self.revision
        self.revision = change.revision
        for name in change.removals:
            del self.lane[name]
        self.lane |= {s.id: s for s in change.upserts}

    @rule(gateway=some_gateway, wanted=st.lists(some_subscription, max_size=4))
    def upserts(self, gateway: str, wanted: list[Subscription]) -> None:
        refused: set[str] = set()
        for one in wanted:
            if self.books.accepts(one, gateway):
                self.books.entries[one.id] = Book(one, self.now_ms)
            else:
                refused.add(one.id)
                known = self.books.entries.get(one.id)
                if known is not None and known.subscription.gateway_id == gateway:
                    known.stale = known.stale and one.gateway_id != gateway
        done = self.registry.upsert(gateway, wanted, self.now_ms)
        assert set(done.refused) == refused
        if refused:
            self.books.lacking.add(gateway)
        assert set(done.over_quota) <= refused
        self.took(done.change)

    @rule(gateway=some_gateway, ids=st.lists(some_id, max_size=3))
    def removes(self, gateway: str, ids: list[str]) -> None:
        mine = {b.subscription.id for b in self.books.of(gateway)}
        for name in mine & set(ids):
            del self.books.entries[name]
        self.took(self.registry.remove(gateway, ids))

    @rule(gateway=some_gateway)
    def gateway_returns(self, gateway: str) -> None:
        for book in self.books.of(gateway):
            book.stale = True
        self.books.lacking.discard(gateway)
        was_kept = self.registry.has_kept(gateway, "a")
        self.registry.gateway_returns(gateway)
        assert self.registry.has_kept(gateway, "a") == was_kept

    @rule(gateway=some_gateway)
    def registration_is_complete(self, gateway: str) -> None:
        for book in self.books.of(gateway):
            if book.stale:
                del self.books.entries[book.subscription.id]
        self.took(self.registry.registration_complete(gateway, "a"))
        assert self.registry.has_kept(gateway, "a") == (gateway not in self.books.lacking)
        assert not self.registry.has_kept(gateway, "b")

    @rule(gateway=some_gateway)
    def gateway_is_gone(self, gateway: str) -> None:
        for book in self.books.of(gateway):
            del self.books.entries[book.subscription.id]
        self.books.renewed_ms.pop(gateway, None)
        self.books.lacking.discard(gateway)
        self.took(self.registry.gateway_gone(gateway))
        assert not self.registry.has_kept(gateway, "a")

    @rule(topic=st.sampled_from(["flights", "trains"]))
    def topic_is_gone(self, topic: str) -> None:
        entries = self.books.entries
        self.books.entries = {n: b for n, b in entries.items() if b.subscription.topic != topic}
        owners = {s.gateway_id for s in self.registry.subscriptions.values() if s.topic == topic}
        self.took(self.registry.topic_gone(topic))
        assert owners.isdisjoint(self.registry.kept)
        self.books.lacking |= owners

    @rule(gateway=some_gateway)
    def gateway_renews(self, gateway: str) -> None:
        self.books.renewed_ms[gateway] = self.now_ms
        self.registry.renew(gateway, self.now_ms)

    @rule(ms=st.sampled_from([1, 50, 99, 100, 200]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        ended = self.books.ended(self.now_ms)
        owners = {self.books.entries[name].subscription.gateway_id for name in ended}
        for name in ended:
            del self.books.entries[name]
        change, gateways = self.registry.expire(self.now_ms)
        assert set(gateways) == owners
        assert owners.isdisjoint(self.registry.kept)
        self.books.lacking |= owners
        self.took(change)

    @invariant()
    def it_holds_what_the_books_say(self) -> None:
        expected = {name: book.subscription for name, book in self.books.entries.items()}
        assert self.registry.subscriptions == expected

    @invariant()
    def the_changes_add_up_to_it(self) -> None:
        assert self.lane == self.registry.subscriptions

    @invariant()
    def the_parts_of_a_snapshot_are_all_of_it(self) -> None:
        parts = self.registry.snapshot()
        found = [s for part in parts for s in part.subscriptions]
        assert {s.id: s for s in found} == self.registry.subscriptions
        assert len(found) == len(self.registry.subscriptions)


TestAnyOrder = RegistryMachine.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
