"""Deliveries where there is a cluster token: a gateway takes them of lanes, on every transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import nats as nats_client
import pytest
from structlog.testing import capture_logs

from headgate import errors
from headgate.adapters.delivery_wire import encode_lines
from headgate.adapters.listeners import ListenerOptions, listener_for
from headgate.adapters.transports import Transports
from headgate.decide.links.passes import ClusterTokens
from headgate.telemetry import LogLine
from tests.adapters.transports.stage import GATEWAY, TIMEOUT_S, Book, batch, delivery
from tests.servers.nats import Nats

PROTOCOLS = ["http", "grpc", "nats"]
OLD = ClusterTokens(("the-old-token-of-this-cluster",))
BOTH = ClusterTokens(("the-new-token-of-this-cluster", *OLD.tokens))
NEW = ClusterTokens(BOTH.tokens[:1])


@asynccontextmanager
async def gateway(
    protocol: str, nats: Nats, tokens: ClusterTokens
) -> AsyncIterator[tuple[Book, str]]:
    book = Book()
    options = ListenerOptions(
        protocol=protocol,
        nats=nats.url,
        nats_prefix=f"test-{uuid4().hex[:12]}",
        keeper=tokens.keeper("gateway"),
    )
    listener = listener_for(options, GATEWAY, book, incarnation="1")
    url = await listener.start()
    try:
        yield book, url
    finally:
        await listener.stop(1.0)


async def deliver(nats: Nats, url: str, shown: str) -> None:
    transport = Transports("lanes-1", shown=shown, nats=nats.url)
    try:
        await transport.deliver(url, batch(delivery(1)), timeout_s=TIMEOUT_S)
    finally:
        await transport.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("tokens", [OLD, NEW], ids=["the old token", "the new one"])
async def test_a_lane_delivers_with_either_of_two_tokens(
    protocol: str, nats: Nats, tokens: ClusterTokens
) -> None:
    async with gateway(protocol, nats, BOTH) as (book, url):
        await deliver(nats, url, tokens.passes("lane").to("gateway"))
        assert [one.seq for one in book.deliveries] == [1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "shown",
    [
        "",
        OLD.passes("lane").to("gateway"),
        NEW.passes("lane").to("coordinator"),
        NEW.passes("gateway").to("gateway"),
        NEW.passes("ingest").to("gateway"),
        NEW.tokens[0],
    ],
    ids=["nothing", "an old one", "another way", "a gateway", "an ingest node", "the token itself"],
)
async def test_nobody_else_delivers_and_no_event_dies_of_it(
    protocol: str, nats: Nats, shown: str
) -> None:
    async with gateway(protocol, nats, NEW) as (book, url):
        with capture_logs() as lines:
            for _ in range(2):
                with pytest.raises(errors.NotNow, match=r"security\.cluster\.tokens"):
                    await deliver(nats, url, shown)
        assert not book.batches
    told = [line for line in lines if line["event"] == LogLine.TOKEN_REFUSED]
    assert len(told) == 1
    assert not shown or shown not in str(told)


async def test_whoever_may_use_nats_may_not_deliver_for_that(nats: Nats) -> None:
    async with gateway("nats", nats, NEW) as (book, url):
        client = await nats_client.connect(nats.url)
        data = encode_lines(batch(delivery(1)))
        reply = await client.request(url.removeprefix("nats://"), data, timeout=TIMEOUT_S)
        await client.close()
        assert b'"status":401' in reply.data
        assert not book.batches


async def test_a_batch_that_just_fits_nats_still_fits_with_its_pass(nats: Nats) -> None:
    """NATS counts headers, too: what is larger with them goes in parts."""
    async with gateway("nats", nats, NEW) as (book, url):
        shown = NEW.passes("lane").to("gateway")
        client = await nats_client.connect(nats.url)
        limit = client.max_payload
        await client.close()
        overhead = len(encode_lines(batch(delivery(1, size_bytes=0), delivery(2, size_bytes=0))))
        full = batch(delivery(1, size_bytes=0), delivery(2, size_bytes=limit - overhead))
        assert len(encode_lines(full)) in (limit, limit - 1)
        transport = Transports("lanes-1", shown=shown, nats=nats.url)
        answer = await transport.deliver(url, full, timeout_s=TIMEOUT_S)
        await transport.close()
        assert answer.verdicts == ("accepted", "accepted")
        assert [one.seq for one in book.deliveries] == [1, 2]
