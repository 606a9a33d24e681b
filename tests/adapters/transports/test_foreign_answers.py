"""Who stands between lanes and a gateway has no say about a batch: only the gateway refuses one for
good, since that makes dead letters of its events."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from headgate import errors
from headgate.adapters.grpc import delivery as grpc_delivery
from headgate.adapters.grpc.delivery import GrpcDeliveryTransport
from headgate.adapters.grpc.streamer import DELIVER, SERVICE
from headgate.adapters.http.delivery import PATH, HttpDeliveryTransport
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.model.http import NDJSON, Request, Response, Route
from tests.adapters.transports.stage import TIMEOUT_S, batch, delivery


async def test_a_proxy_that_is_exhausted_refuses_nothing_for_good() -> None:
    async def exhausted(_batches: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests")

    proxy = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(exhausted)
    proxy.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {DELIVER: handler}),)
    )
    port = proxy.add_insecure_port("127.0.0.1:0")
    await proxy.start()
    lanes = GrpcDeliveryTransport("lanes-1")
    with pytest.raises(errors.NotNow, match="too many requests"):
        await lanes.deliver(f"grpc://127.0.0.1:{port}", batch(delivery(1)), timeout_s=TIMEOUT_S)
    await lanes.close()
    await proxy.stop(None)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_proxy_that_answers_for_the_gateway_refuses_nothing_for_good(status: int) -> None:
    async def refuse(request: Request) -> Response:
        await request.body(1_000_000)
        return Response(status, b"<html>nginx</html>", "text/html")

    proxy = HttpServer()
    app = HttpApp([Route("POST", PATH, refuse, accepts=(NDJSON,))])
    port = await proxy.start(app, "127.0.0.1", 0, setting="proxy")
    lanes = HttpDeliveryTransport("lanes-1")
    with pytest.raises(errors.NotNow, match=f"answered {status}, and is no gateway"):
        await lanes.deliver(f"http://127.0.0.1:{port}", batch(delivery(1)), timeout_s=TIMEOUT_S)
    await lanes.close()
    await proxy.stop(1.0)


async def test_what_no_gateway_reads_is_too_large_over_grpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_delivery, "MAX_BATCH_BYTES", 1_000)
    lanes = GrpcDeliveryTransport("lanes-1")
    sent = batch(delivery(1, size_bytes=1_000))
    with pytest.raises(errors.TooLarge, match="more than 1,000 bytes"):
        await lanes.deliver("grpc://127.0.0.1:1", sent, timeout_s=TIMEOUT_S)
    await lanes.close()
