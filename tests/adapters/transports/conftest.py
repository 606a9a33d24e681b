"""Each transport twice: as it is on loopback, and with TLS and a token; and the one in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Protocol
from uuid import uuid4

import pytest
import trustme

from headgate.ports.transport import DeliveryListener, DeliveryTransport
from tests.adapters.transports.stage import GATEWAY, TOKEN, Accepting, TlsFiles, Way
from tests.servers.nats import Nats

WIRED = [f"{protocol}-{kind}" for protocol in ("http", "grpc", "nats") for kind in ("plain", "tls")]
"""Those on which bytes travel."""
WAYS = [*WIRED, "memory-plain"]


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    folder = tmp_path_factory.mktemp("tls")
    ours, other = trustme.CA(), trustme.CA()
    server = ours.issue_cert("127.0.0.1", "localhost")
    files = TlsFiles(
        *(str(folder / name) for name in ("server.pem", "server.key", "ca.pem", "other.pem"))
    )
    server.cert_chain_pems[0].write_to_path(files.certificate)
    server.private_key_pem.write_to_path(files.key)
    ours.cert_pem.write_to_path(files.authority)
    other.cert_pem.write_to_path(files.other_authority)
    return files


@pytest.fixture(scope="session")
def nats_with_tls(tls_files: TlsFiles) -> Iterator[Nats]:
    options = ("--tls", "--tlscert", tls_files.certificate, "--tlskey", tls_files.key)
    with Nats(*options, "--auth", TOKEN, scheme="tls") as server:
        yield server


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tls_files: TlsFiles) -> Way:
    protocol, _, kind = request.param.partition("-")
    secure = kind == "tls"
    nats = ""
    if protocol == "nats":
        server: Nats = request.getfixturevalue("nats_with_tls" if secure else "nats")
        nats = server.url
    return Way(protocol, secure, tls_files, nats, nats_prefix=f"test-{uuid4().hex[:12]}")


class Listen(Protocol):
    async def __call__(
        self, accept: Accepting, *, node_id: str = GATEWAY, url: str = ""
    ) -> tuple[DeliveryListener, str]: ...


@pytest.fixture
async def listen(way: Way) -> AsyncIterator[Listen]:
    """Starts a gateway's listener, which ends with the test."""
    async with AsyncExitStack() as stack:

        async def start(
            accept: Accepting, *, node_id: str = GATEWAY, url: str = ""
        ) -> tuple[DeliveryListener, str]:
            listener = way.listener(accept, node_id=node_id, url=url)
            found = await listener.start()
            stack.push_async_callback(listener.stop, 1.0)
            return listener, found

        yield start


@pytest.fixture
async def lanes(way: Way) -> AsyncIterator[DeliveryTransport]:
    transport = way.transport()
    yield transport
    await transport.close()
