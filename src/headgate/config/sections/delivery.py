"""How matches travel from lanes to gateways, and what happens to those that can't be delivered."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headgate.config.sections.section import Section
from headgate.config.units import SizeUnit, seconds, size_bytes
from headgate.config.value_types import Count, Duration, NatsServers, NatsSubject, Percent, Token


class TransportSettings(Section):
    token: Token = ""
    """Token of NATS; over HTTP and gRPC what lanes show to gateways where there are no
    `security.cluster.tokens`, which guard everything that roles say to each other."""
    tls_certificate: str = ""
    """File of the certificate that gateways show, with its chain (empty: no TLS)."""
    tls_key: str = ""
    """File of its key."""
    tls_authority: str = ""
    """File of the certificate that vouches for gateways and NATS (empty: the system's own)."""
    nats: NatsServers = ""
    """Servers of NATS, with commas in between; tls:// instead of nats:// for TLS."""
    nats_prefix: NatsSubject = "headgate.deliver"
    """Beginning of every subject; clusters of Headgate that share a NATS need one each."""


class BatchSettings(Section):
    max_size: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Most events in one delivery batch."""
    max_bytes: Annotated[int, SizeUnit(), Field(ge=65_536)] = size_bytes("8MiB")
    """Most that the documents of one delivery batch have; a larger one goes alone."""
    max_wait: Duration = seconds("50ms")
    """Longest time an event waits for its batch to fill."""
    flush_interval: Duration = seconds("10ms")
    """Shortest time between two batches for a gateway that are not full."""


class BackpressureSettings(Section):
    soft_watermark: Percent = 70
    """Fill of a gateway's queue, in percent, above which low priority is shed."""
    hard_watermark: Percent = 90
    """Fill above which everything is parked."""
    resume_watermark: Percent = 60
    """Fill below which delivery is back to normal."""
    queue_size: Count = 10_000
    """Most events waiting for one gateway."""
    queue_memory: Annotated[int, SizeUnit(), Field(ge=size_bytes("64MiB"))] = size_bytes("64MiB")
    """Most that the documents of events waiting for one gateway have, in a lane, and those of
    letters waiting to be written; what is nearer, this or `queue_size`, counts."""


class RetrySettings(Section):
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts to deliver a batch, the first one included."""
    initial_delay: Duration = seconds("100ms")
    """Wait before the second attempt."""
    max_delay: Duration = seconds("5s")
    """Longest wait between two attempts."""
    multiplier: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Growth of the wait from attempt to attempt."""


class DeliverySettings(Section):
    protocol: Literal["http", "grpc", "nats"] = "http"
    """How batches travel to gateways."""
    timeout: Duration = seconds("5s")
    """Longest wait for a gateway's answer to one batch."""
    retry: RetrySettings = RetrySettings()


class DlqSettings(Section):
    enabled: bool = True
    """Keep what is refused for good as dead letters; false halts its partition there instead."""
    max_age: Duration = seconds("7d")
    """Age at which a dead letter is swept."""


class RoutingSettings(Section):
    mode: Literal["direct", "consistent_hash", "broadcast"] = "direct"
    """Where subscribers go and who gets a match: direct, consistent_hash or broadcast."""
    num_partitions: Annotated[int, Field(ge=1, le=1_024)] = 1
    """Partitions of a topic that is created without a count."""
    max_fanout: Annotated[int, Field(ge=0)] = 3
    """Most gateways that one event is broadcast to (0: all)."""
    batch: BatchSettings = BatchSettings()
    backpressure: BackpressureSettings = BackpressureSettings()
    delivery: DeliverySettings = DeliverySettings()
    dlq: DlqSettings = DlqSettings()
