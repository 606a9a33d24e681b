"""Where a gateway takes deliveries: what it announces, and what it says when it can't."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headgate import errors
from headgate.adapters.listeners import Guard, ListenerOptions, listener_for
from headgate.adapters.processes import free_port
from headgate.adapters.transports import Transports
from headgate.decide.links.passes import ClusterTokens, PassKeeper
from headgate.model.addresses import reachable
from headgate.model.audit import AuditLine
from headgate.model.delivery import Batch, DeliveryAnswer, DeliveryBatch
from headgate.telemetry import LogLine
from tests.servers.nats import Nats
from tests.services.gateway.world import running


def nothing(_batch: Batch) -> DeliveryAnswer:
    return DeliveryAnswer(())


@pytest.mark.parametrize(
    ("host", "advertised", "address"),
    [
        pytest.param("127.0.0.1", "", "127.0.0.1:5", id="loopback"),
        pytest.param("0.0.0.0", "", "127.0.0.1:5", id="everywhere"),
        pytest.param("::1", "", "[::1]:5", id="version 6"),
        pytest.param("0.0.0.0", "gw.example", "gw.example:5", id="by name"),
    ],
)
def test_announced_address_is_one_that_others_reach(
    host: str, advertised: str, address: str
) -> None:
    assert reachable(host, 5, advertised=advertised) == address


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("host", "token", "warned"),
    [("127.0.0.1", "", False), ("0.0.0.0", "secret", False), ("0.0.0.0", "", True)],
    ids=["loopback", "token", "open"],
)
async def test_an_open_address_without_a_token_is_warned_about(
    protocol: str, host: str, token: str, warned: bool
) -> None:
    options = ListenerOptions(protocol=protocol, host=host, token=token)
    listener = listener_for(options, "gateway-1", nothing, incarnation="1")
    with capture_logs() as lines:
        await listener.start()
    await listener.stop(1.0)
    assert [line["event"] for line in lines] == ([LogLine.TRANSPORT_OPEN] if warned else [])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_port_in_use_names_its_setting(protocol: str) -> None:
    port = free_port("127.0.0.1")
    options = ListenerOptions(protocol=protocol, port=port)
    first = listener_for(options, "gateway-1", nothing, incarnation="1")
    await first.start()
    with pytest.raises(errors.OperatorError, match=r"gateway\.client_port"):
        await listener_for(options, "gateway-2", nothing, incarnation="1").start()
    await first.stop(1.0)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_certificate_that_cannot_be_read_names_its_setting(
    protocol: str, tmp_path: Path
) -> None:
    missing = str(tmp_path / "none.pem")
    options = ListenerOptions(protocol=protocol, certificate=missing, key=missing)
    with pytest.raises(errors.OperatorError, match=r"transport\.tls_certificate .*none\.pem"):
        await listener_for(options, "gateway-1", nothing, incarnation="1").start()


@pytest.mark.parametrize("protocol", ["http", "grpc", "nats"])
async def test_a_gateway_announces_how_it_takes_deliveries_and_passes_them_on(
    protocol: str, nats: Nats
) -> None:
    options = ListenerOptions(protocol=protocol, nats=nats.url, nats_prefix="test.announced")
    async with running(deliveries=options) as world:
        assert world.coordinator.hellos[0].url.startswith(f"{protocol}://")
        subscriber = await world.websocket()
        assert (await subscriber.next())["type"] == "subscribed"
        assert await world.produce({"alt": 1}, {"alt": 2}) == ["accepted", "accepted"]
        assert await subscriber.events(2) == [(0, 1), (0, 2)]


def test_a_guard_lets_in_only_the_whole_token() -> None:
    guard = Guard(PassKeeper.of_secret("secret", ("lane",)))
    guard("Bearer secret", "lanes-1")
    for wrong in ("", "secret", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer sécret"):
        with pytest.raises(errors.Unauthorized):
            guard(wrong, "lanes-1")
    Guard(PassKeeper())("anything", "lanes-1")


def test_a_guard_writes_down_whom_it_turns_away() -> None:
    lines: list[AuditLine] = []

    class Trail:
        def note(self, line: AuditLine) -> None:
            lines.append(line)

    tokens = ClusterTokens(("a-token-of-this-cluster",))
    guard = ListenerOptions(keeper=tokens.keeper("gateway"), audit=Trail()).guard
    guard(f"Bearer {tokens.passes('lane').to('gateway')}", "lanes-1")
    for shown in ("secret", tokens.passes("router").to("gateway")):
        with pytest.raises(errors.Unauthorized):
            guard(f"Bearer {shown}", "10.0.0.7\nlanes")
    assert [(one.who, one.what, one.outcome) for one in lines] == [
        ("nobody", "delivery", "refused"),
        ("a router", "delivery", "refused"),
    ]
    assert "secret" not in str(lines)
    assert "\n" not in lines[0].from_


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        pytest.param("smtp://x", "doesn't know", id="unknown"),
        pytest.param("nats://x", r"set transport\.nats", id="NATS without servers"),
    ],
)
async def test_a_router_that_cannot_follow_a_gateway_says_what_it_lacks(
    url: str, sentence: str
) -> None:
    transports = Transports("lanes-1")
    with pytest.raises(errors.NotNow, match=sentence):
        await transports.deliver(url, DeliveryBatch("g", 1, 0, ()), timeout_s=1.0)


async def test_a_missing_authority_may_be_mended(tmp_path: Path) -> None:
    transports = Transports("lanes-1", authority=str(tmp_path / "none.pem"))
    with pytest.raises(errors.NotNow, match=r"transport\.tls_authority"):
        await transports.deliver("https://x", DeliveryBatch("g", 1, 0, ()), timeout_s=1.0)
