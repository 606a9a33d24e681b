"""How much one producer may take of an ingest node, and what they are told beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from headgate.decide.limits.addresses import FROM_HEADER
from headgate.decide.links.passes import PASS_HEADER, ClusterTokens, PassKeeper
from headgate.errors import NotNow, RateLimited
from headgate.model.access import NOBODY, Limits, Principal
from headgate.model.http import Headers, Request, error_response
from headgate.services.ingest.produce.shares import UNCOUNTED, ProduceRates, Share, Shares

TOKENS = ClusterTokens(("a-token-of-this-cluster",))
KEEPER = TOKENS.keeper("ingest")
RATES = ProduceRates(10, 1_000)


async def nothing() -> Mapping[str, Any]:
    raise AssertionError


def asked(
    headers: Mapping[str, str] | None = None, *, principal: Principal | None = None
) -> Request:
    sent = Headers((headers or {}).items())
    return Request("POST", "/", nothing, headers=sent, principal=principal, peer="10.0.0.7")


def of(request: Request, keeper: PassKeeper = KEEPER) -> Share:
    return Shares(RATES, keeper).of(request)


def test_whoever_says_who_they_are_is_counted_by_name_and_by_their_own_limits() -> None:
    shop = Principal("shop", "token", limits=Limits(events_per_s=3))
    assert of(asked(principal=shop)) == Share("token shop", 3, 1_000)
    assert of(asked(principal=NOBODY)).who == "address 10.0.0.7"


@pytest.mark.parametrize(
    ("caller", "who"),
    [("gateway", "address 192.0.2.1"), ("lane", "address 10.0.0.7"), (None, "address 10.0.0.7")],
)
def test_only_a_gateway_says_for_whom_it_asks(caller: Any, who: str) -> None:
    shown = TOKENS.passes(caller).to("ingest") if caller else "made up"
    assert of(asked({PASS_HEADER: shown, FROM_HEADER: "192.0.2.1"})).who == who


def test_where_nobody_is_asked_the_named_address_counts() -> None:
    assert of(asked({FROM_HEADER: "192.0.2.1"}), PassKeeper()).who == "address 192.0.2.1"


def test_what_is_handed_on_was_counted_before() -> None:
    assert of(asked({PASS_HEADER: TOKENS.passes("ingest").to("ingest")})) == UNCOUNTED


def test_a_token_and_a_jwt_of_one_name_are_two() -> None:
    both = [Principal("shop", kind) for kind in ("token", "jwt")]
    assert len({of(asked(principal=one)).who for one in both}) == 2


@pytest.mark.parametrize("headers", [{}, {"content-length": "700"}, {"content-length": "2500"}])
async def test_every_byte_counts_once_whether_it_is_declared_or_not(
    headers: dict[str, str],
) -> None:
    pieces = [b"x" * 700, b"x" * 1_800]

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    shares, share = Shares(RATES, KEEPER), Share("address 10.0.0.7", 10, 1_000)
    request = msgspec.structs.replace(asked(headers), receive=receive)
    body = shares.counted(share, request, lambda: 0.0)
    while pieces:
        await body.receive()
    with pytest.raises(RateLimited) as caught:
        shares.check(share, 0.0)
    alike, other = Shares(RATES, KEEPER), Share("address 10.0.0.7", 10, 1_000)
    alike.take(other, 0.0, size_bytes=2_500)
    with pytest.raises(RateLimited) as expected:
        alike.check(other, 0.0)
    assert caught.value.retry_after_s == expected.value.retry_after_s


def test_without_limits_nobody_is_counted() -> None:
    assert Shares(ProduceRates(), KEEPER).of(asked()) == UNCOUNTED


@pytest.mark.parametrize("taken", [{"events": 21}, {"size_bytes": 3_000}])
def test_beyond_their_share_they_are_told_when_to_come_again(taken: dict[str, int]) -> None:
    shares, share = Shares(RATES, KEEPER), Share("address 10.0.0.7", 10, 1_000)
    shares.check(share, 0.0)
    shares.take(share, 0.0, **taken)
    with pytest.raises(RateLimited, match=r"address 10\.0\.0\.7 sends more") as caught:
        shares.check(share, 0.0)
    assert isinstance(caught.value, NotNow), "clients send it again"
    answer = error_response(caught.value)
    assert answer.status == 429
    assert answer.headers["retry-after"] == "1"
    shares.check(share, 5.0)
    shares.check(Share("address 10.0.0.8", 10, 1_000), 0.0)
