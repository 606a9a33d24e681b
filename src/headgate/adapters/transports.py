"""The transport of each gateway, by the address it announced.

Lanes follow what gateways say, not what their own configuration says: so a change of protocol can
be rolled out gateway by gateway. What no gateway uses is not opened, and imported only where it is
the default.
"""

from __future__ import annotations

from pathlib import Path

from headgate.adapters.http.delivery import HttpDeliveryTransport
from headgate.errors import NotNow
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.ports.transport import DeliveryTransport, Meanwhile


class Transports:
    """Implements ports.transport.DeliveryTransport for every kind of address.

    `shown` is what gateways want to see, without which it is `token`; that is also the one of NATS.
    `authority` is the file of the certificate that vouches for gateways and for NATS, `nats` its
    servers. What is missing or wrong here is the operator's to mend, so a delivery may work later.
    """

    def __init__(
        self,
        node_id: str,
        *,
        shown: str = "",
        token: str = "",
        authority: str = "",
        nats: str = "",
    ) -> None:
        self._node_id = node_id
        self._shown = shown
        self._token = token
        self._authority = authority
        self._nats = nats
        self._opened: dict[str, DeliveryTransport] = {}

    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        transport = self._opened.get(url.partition("://")[0])
        if transport is not None:
            transport.prepare(url, batch)

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        scheme, _, _ = url.partition("://")
        transport = self._opened.get(scheme)
        if transport is None:
            transport = self._opened[scheme] = self._open(scheme, url)
        return await transport.deliver(url, batch, timeout_s=timeout_s, meanwhile=meanwhile)

    async def close(self) -> None:
        opened = list(self._opened.values())
        self._opened.clear()
        for transport in opened:
            await transport.close()

    def _open(self, scheme: str, url: str) -> DeliveryTransport:
        match scheme:
            case "http" | "https":
                return HttpDeliveryTransport(
                    self._node_id,
                    token=self._shown or self._token,
                    authority=self._authority_pem(),
                )
            case "grpc" | "grpcs":
                from headgate.adapters.grpc.delivery import GrpcDeliveryTransport

                return GrpcDeliveryTransport(
                    self._node_id,
                    token=self._shown or self._token,
                    authority=self._authority_pem(),
                )
            case "nats":
                return self._open_nats(url)
        raise NotNow(f"gateway at {url} announces a transport that this router doesn't know")

    def _open_nats(self, url: str) -> DeliveryTransport:
        if not self._nats:
            raise NotNow(
                f"gateway at {url} takes deliveries over NATS: set transport.nats for this router"
            )
        try:
            from headgate.adapters.nats.delivery import NatsDeliveryTransport
        except ImportError as error:
            raise NotNow(
                f"gateway at {url} takes deliveries over NATS, which needs nats-py: "
                f"run pip install 'headgate[nats]' ({error})"
            ) from error
        return NatsDeliveryTransport(
            self._node_id,
            self._nats,
            token=self._token,
            authority=self._authority,
            shown=self._shown,
        )

    def _authority_pem(self) -> bytes:
        if not self._authority:
            return b""
        try:
            return Path(self._authority).read_bytes()
        except OSError as error:
            raise NotNow(
                f"can't read transport.tls_authority {self._authority}: {error.strerror}"
            ) from error
