from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.access.deciding import enforced
from headgate.decide.access.enforcing import joined
from headgate.decide.access.grants import all_parsed
from headgate.decide.filter.plan import compile_filter
from headgate.errors import Forbidden, InvalidFilter
from headgate.model.access import Principal

MINE = {"tenant": "mine", "x": 1}
THEIRS = {"tenant": "theirs", "x": 1}


def of(*texts: str, **claims: Any) -> Principal:
    return Principal("ann", "jwt", all_parsed(texts), claims=claims)


def seen(principal: Principal, where: str | None, *documents: object) -> list[object]:
    text = joined(enforced(principal, "subscribe", topic="t"), where)
    found = compile_filter(text)
    return [document for document in documents if found.matches(document)]


BY_TENANT = "subscribe where tenant == claims.tenant"


@pytest.mark.parametrize(
    "where",
    [
        None,
        "x == 1",
        'x == 1 || tenant == "theirs"',
        'true || tenant == "theirs"',
        "x == 1 // and",
        '!(tenant == "nobody")',
        'x == 1 ? true : tenant == "theirs"',
        "claims == 1 || true",
    ],
)
def test_nothing_a_subscriber_writes_shows_what_the_grant_excludes(where: str | None) -> None:
    assert seen(of(BY_TENANT, tenant="mine"), where, MINE, THEIRS, {}, None, 1, []) in (
        [MINE],
        [],
    )
    assert seen(of("subscribe"), "x == 1", MINE, THEIRS) == [MINE, THEIRS]


@pytest.mark.parametrize("where", ["x == 1) || (true", "x == 1 ||", ") || (", "x == 1 } {"])
def test_what_ends_the_grants_part_early_is_a_mistake_of_the_subscribers(where: str) -> None:
    with pytest.raises(InvalidFilter, match="column") as refused:
        joined(enforced(of(BY_TENANT, tenant="s3cret"), "subscribe", topic="t"), where)
    assert "s3cret" not in str(refused.value)


scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3)
documents = st.dictionaries(st.sampled_from(["tenant", "x", "y"]), scalars, max_size=3)
filters = st.sampled_from(
    [None, "x == 1", "x > 0 || y == 1", "!(x == 1)", "has(y)", 'tenant != ""', "x + 1 > 0", "y"]
)


@given(document=documents, where=filters, tenant=st.text(max_size=3))
def test_joined_is_both(document: dict[str, Any], where: str | None, tenant: str) -> None:
    ann = of(BY_TENANT, tenant=tenant)
    both = compile_filter(joined(enforced(ann, "subscribe", topic="t"), where))
    is_mine = isinstance(document.get("tenant"), str) and document["tenant"] == tenant
    assert both.matches(dict(document)) == (is_mine and compile_filter(where).matches(document))


@pytest.mark.parametrize(
    ("claim", "document"),
    [
        ("a", {"t": "a"}),
        ('a" || true || "', {"t": 'a" || true || "'}),
        ("\n\\`", {"t": "\n\\`"}),
        (1, {"t": 1}),
        (1.5, {"t": 1.5}),
        (True, {"t": True}),
    ],
)
def test_a_claim_is_a_constant_whatever_is_in_it(claim: object, document: object) -> None:
    ann = of("subscribe where t == claims.t", t=claim)
    assert seen(ann, None, document, {"t": "other"}, {"t": 7}, {}) == [document]


def test_claims_may_be_lists_and_nested() -> None:
    ann = of("subscribe where t in claims.org.tenants", org={"tenants": ["a", "b"]})
    assert seen(ann, None, {"t": "a"}, {"t": "c"}, {"t": "b"}) == [{"t": "a"}, {"t": "b"}]


@pytest.mark.parametrize(
    "grant",
    [
        "subscribe where t == claims.t",
        "subscribe where t != claims.t",
        "subscribe where !(t == claims.t)",
        "subscribe where true || t == claims.t",
        "subscribe where t == claims",
        "subscribe where t == claims.list",
        "subscribe where has(t[claims.t])",
        "subscribe where has(claims)",
        "subscribe where t == claims.list.deeper",
    ],
)
def test_without_its_claim_a_grant_shows_nothing(grant: str) -> None:
    with pytest.raises(Forbidden):
        enforced(of(grant, list={"a": 1}), "subscribe", topic="t")


def test_has_asks_for_claims_as_for_fields() -> None:
    assert seen(of("subscribe where has(claims.t) && has(t)", t="a"), None, {"t": 1}) == [{"t": 1}]
    assert seen(of("subscribe where has(claims.t)"), None, {"claims": {"t": 1}}) == []


def test_several_grants_show_what_any_of_them_shows() -> None:
    ann = of("subscribe where x == 1", "subscribe where x == 2", "consume")
    assert seen(ann, None, {"x": 1}, {"x": 2}, {"x": 3}) == [{"x": 1}, {"x": 2}]
    free = of("subscribe where x == 1", "subscribe on t")
    assert enforced(free, "subscribe", topic="t") is None
    assert enforced(free, "subscribe", topic="other") is not None


def test_a_denied_filter_hides() -> None:
    ann = of("subscribe", "deny subscribe where secret == true")
    assert seen(ann, None, {"secret": True}, {"secret": False}, {}) == [{"secret": False}, {}]


def test_a_filter_on_which_the_grant_fails_shows_nothing() -> None:
    ann = of("subscribe where x / 0 == 1 || y == 1")
    assert seen(ann, None, {"x": 1}, {"x": 1, "y": 2}) == []


def test_joined_again_is_the_same() -> None:
    """A consumer group's filter has the grant's part in it already."""
    limit = enforced(
        of(BY_TENANT, "deny subscribe where s == 1", tenant="a"), "subscribe", topic="t"
    )
    once = joined(limit, "x == 1")
    assert joined(limit, once) == once


def test_too_much_together_is_refused_without_a_word_of_the_grants_part() -> None:
    ann = of("subscribe where t in claims.t", t=["s3cret" + str(n) for n in range(900)])
    with pytest.raises(InvalidFilter) as refused:
        joined(enforced(ann, "subscribe", topic="t"), "x == 1")
    assert "s3cret" not in str(refused.value)
    assert "make it simpler" in str(refused.value)
