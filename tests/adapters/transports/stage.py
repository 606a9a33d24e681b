"""Every transport, plain and secured, as the contract suite sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import msgspec

from headgate.adapters.listeners import ListenerOptions, listener_for
from headgate.adapters.memory.delivery import (
    MemoryDeliveryListener,
    MemoryDeliveryTransport,
    MemoryGateways,
)
from headgate.adapters.transports import Transports
from headgate.model.delivery import Batch, Delivery, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.ports.transport import DeliveryListener, DeliveryTransport

TIMEOUT_S = 30.0
TOKEN = "correct-horse-battery-staple"
GATEWAY = "gateway-1"


@dataclass(frozen=True)
class TlsFiles:
    certificate: str
    key: str
    authority: str
    other_authority: str
    """Of somebody else."""


@dataclass(frozen=True)
class Way:
    """One transport: what gateways listen with, and what lanes deliver with."""

    protocol: str
    secure: bool
    files: TlsFiles
    nats: str = ""
    nats_prefix: str = "headgate.deliver"
    gateways: MemoryGateways = field(default_factory=MemoryGateways)

    @property
    def scheme(self) -> str:
        return self.protocol if self.protocol == "nats" or not self.secure else f"{self.protocol}s"

    def listener(
        self, accept: Accepting, *, node_id: str = GATEWAY, url: str = "", token: str = TOKEN
    ) -> DeliveryListener:
        """`url`: listen where an earlier one did."""
        if self.protocol == "memory":
            return MemoryDeliveryListener(self.gateways, url or f"memory://{node_id}", accept)
        options = ListenerOptions(
            protocol=self.protocol,
            port=0 if not url or self.protocol == "nats" else int(url.rpartition(":")[2]),
            nats=self.nats,
            nats_prefix=self.nats_prefix,
        )
        if self.secure:
            options = replace(
                options,
                token=token,
                certificate=self.files.certificate,
                key=self.files.key,
                authority=self.files.authority,
            )
        return listener_for(options, node_id, accept, incarnation="1")

    def transport(self, *, token: str = TOKEN, authority: str = "") -> DeliveryTransport:
        if self.protocol == "memory":
            return MemoryDeliveryTransport(self.gateways)
        if not self.secure:
            return Transports("lanes-1", nats=self.nats)
        return Transports(
            "lanes-1", token=token, authority=authority or self.files.authority, nats=self.nats
        )


Accepting = Callable[[Batch], DeliveryAnswer | Awaitable[DeliveryAnswer]]


@dataclass
class Book:
    """A gateway's decision that takes everything and writes it down."""

    batches: list[Batch] = field(default_factory=list)

    def __call__(self, batch: Batch) -> DeliveryAnswer:
        self.batches.append(batch)
        accepted: Verdict = "accepted"
        return DeliveryAnswer((accepted,) * len(batch.deliveries), fill=0.25)

    @property
    def deliveries(self) -> list[Delivery]:
        return [one for batch in self.batches for one in batch.deliveries]


def delivery(seq: int, *, size_bytes: int = 20) -> Delivery:
    return Delivery(
        topic="flights",
        partition=0,
        seq=seq,
        event_id=f"event-{seq}",
        key=None,
        collection="",
        op="insert",
        document=msgspec.Raw(b'{"text":"%b"}' % (b"x" * size_bytes)),
        subscriptions=("s1",),
        epoch=1,
    )


def batch(*deliveries: Delivery, gateway_id: str = GATEWAY) -> DeliveryBatch:
    return DeliveryBatch(gateway_id, 3, 1, deliveries, incarnation="its second process")


def plain(found: Batch) -> list[object]:
    """A batch with its identities, and its documents as bytes, to compare."""
    return [
        found.gateway_id,
        found.window,
        found.attempt,
        found.incarnation,
        list(found.identities),
        *(
            [
                bytes(value) if isinstance(value, msgspec.Raw) else value
                for value in msgspec.structs.astuple(one)
            ]
            for one in found.deliveries
        ),
    ]
