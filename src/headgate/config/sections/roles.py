"""Where each role listens, which roles it calls, and how much it takes on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headgate.config.sections.section import Section
from headgate.config.units import DurationUnit, seconds, size_bytes
from headgate.config.value_types import (
    Advertised,
    Count,
    Duration,
    DurationMs,
    Host,
    Hosts,
    Imbalance,
    Origins,
    Port,
    Size,
    SparkMaster,
    SparkMemory,
    Weight,
    WhenSlow,
)

LONGEST_REQUEST_S = seconds("15m")
"""The longest request_timeout a producer may ask for; an idempotency key must outlive it."""


class PublicSettings(Section):
    host: Host = "127.0.0.1"
    """Address that users call."""
    advertise: Advertised = ""
    """Name by which subscribers reach this gateway, where `host` doesn't say that."""
    port: Port = 8780
    """Port of everything a user calls over HTTP (0: any free one)."""
    ws_port: Port = 8781
    """Port of WebSocket subscribers (0: any free one)."""
    origins: Origins = ""
    """Origins of web pages that may call every role (empty: none); see [web pages](#web-pages)."""


class CoordinatorSettings(Section):
    host: Host = "127.0.0.1"
    """Address the coordinator listens on."""
    advertise: Advertised = ""
    """Name by which others reach it, where `host` doesn't say that."""
    store: Literal["embedded", "etcd"] = "embedded"
    """Where its state is kept; with etcd there may be several coordinators, of which one leads."""
    http_port: Port = 8782
    """Port of its HTTP interface."""
    router_port: Port = 8000
    """Port for routers, lanes and ingest nodes."""
    consumer_port: Port = 8001
    """Port for gateways and clients."""
    rebalance: DurationMs = seconds("10s")
    """Time between two plans that may move partitions."""
    strategy: Literal["balanced", "ring"] = "balanced"
    """How plans choose: to spread every topic evenly, or by a consistent-hash ring."""
    router_imbalance: Imbalance = 0
    """How many more source partitions than its peers a router may keep."""
    consumer_imbalance: Imbalance = 0
    """How many more target partitions than its peers a consumer of a group may keep."""
    ingest_imbalance: Imbalance = 0
    """How many more log partitions than its peers an ingest node may keep."""
    timeout: DurationMs = seconds("30s")
    """Time without a check-in after which a node is lost, and its partitions move in any case."""
    grace: DurationMs = seconds("2s")
    """Time without a connection after which a node's partitions move, if others can take them."""
    check_in: Duration = seconds("5s")
    """Time between two check-ins of a node; at most a third of the timeout."""
    learn_for: Annotated[float, DurationUnit(plain_ms=True), Field(ge=0)] = seconds("60s")
    """Longest learning time of a coordinator that starts without state among working nodes."""
    adoption_timeout: Duration = seconds("30s")
    """Longest wait of a drained cutover for nodes and clients to adopt it."""
    subscribe_timeout: Duration = seconds("15s")
    """Longest wait for the lanes to adopt a subscription."""


class IngestSettings(Section):
    host: Host = "127.0.0.1"
    """Address an ingest node listens on."""
    advertise: Advertised = ""
    """Name by which others reach it, where `host` doesn't say that."""
    port: Port = 9100
    """Port of its HTTP interface."""
    server_address: Hosts = "127.0.0.1"
    """Address of the coordinator; of several, all of them, with their ports where those differ."""
    server_port: Port = 8000
    """The coordinator's router_port."""
    weight: Weight = 1.0
    """Its share of the log partitions, compared with other ingest nodes."""
    write_timeout: Duration = seconds("3s")
    """Longest attempt to write to one partition."""
    max_body: Size = size_bytes("16MiB")
    """Largest produce request."""
    max_document: Size = size_bytes("1MiB")
    """Largest document of one event."""
    max_depth: Annotated[int, Field(ge=1, le=500)] = 64
    """Deepest nesting of a document."""
    idempotency_ttl: Annotated[Duration, Field(gt=LONGEST_REQUEST_S)] = seconds("30m")
    """How long an idempotency key is remembered."""
    waiting_requests: Count = 1_024
    """Most produce requests that wait at a time; more are refused as overloaded."""
    waiting_memory: Size = size_bytes("256MiB")
    """Most that the bodies of requests have, from when they arrive until they are written; more are
    refused as overloaded."""
    set_aside_initial: Duration = seconds("500ms")
    """How long a partition is left alone after its first failed write (opportunistic topics)."""
    set_aside_max: Duration = seconds("5s")
    """Longest time a partition that keeps failing is left alone between two probes."""
    set_aside_multiplier: Annotated[float, Field(ge=1, le=100)] = 1.5
    """Growth of that time from failure to failure."""
    degraded_factor: Annotated[float, Field(gt=1, le=1_000)] = 5.0
    """How many times slower than its peers a partition may be before it is avoided."""
    degraded_window: Duration = seconds("10s")
    """The last writes that partitions are compared by; also how long a slow one is avoided."""


class RouterSettings(Section):
    server_address: Hosts = "127.0.0.1"
    """Address of the coordinator; of several, all of them, with their ports where those differ."""
    server_port: Port = 8000
    """The coordinator's router_port."""
    weight: Weight = 1.0
    """Its share of the source partitions, compared with other routers."""
    master: SparkMaster = "local[8,4]"
    """Where Spark runs the lanes."""
    slots: Count = 4
    """Most lanes that run at a time."""
    window: Annotated[Duration, Field(ge=seconds("1s"))] = seconds("10m")
    """How long an open window stays open where nothing changes; every change of windows is felt."""
    lane_report_timeout: Duration = seconds("5s")
    """Silence of a lane after which its window ends."""
    read_limit: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Most records per read of the log."""
    flush_every: DurationMs = seconds("10s")
    """Time between two attempts to redeliver parked records."""
    buffer_timeout: DurationMs = seconds("60s")
    """Longest time a record waits in memory before it is parked."""
    host: Host = "127.0.0.1"
    """Address where a router serves /health and /metrics."""
    advertise: Advertised = ""
    """Name by which others reach it, where `host` doesn't say that."""
    http_port: Port = 0
    """Port of those (0: any free one, which `headgate status --json` names)."""
    driver_memory: SparkMemory = "1g"
    """Memory of the Spark driver's JVM, such as 800m or 2g."""
    class_archive: Literal["make", "use", "off"] = "make"
    """Start Spark from an archive of its classes: make a missing one, only use one, or off."""


class WhenSlowSettings(Section):
    high: WhenSlow = "park"
    """What a full queue of a high-priority subscription means; see docs/protocol.md."""
    normal: WhenSlow = "park"
    """The same for normal priority."""
    low: WhenSlow = "drop_oldest"
    """The same for low priority."""


class GatewaySettings(Section):
    client_address: Host = "127.0.0.1"
    """Address where routers deliver."""
    advertise: Advertised = ""
    """Name by which routers reach that, where `client_address` doesn't say it."""
    client_port: Port = 9000
    """Port where routers deliver."""
    server_address: Hosts = "127.0.0.1"
    """Address of the coordinator; of several, all of them, with their ports where those differ."""
    server_port: Port = 8001
    """The coordinator's consumer_port."""
    subscriber_queue: Count = 1_000
    """Most events waiting for one subscription; when_slow says what happens beyond it."""
    queue_memory: Size = size_bytes("256MiB")
    """Most memory for what waits for all subscribers; beyond it their queues are full."""
    waiting_memory: Size = size_bytes("256MiB")
    """Most that the bodies of requests have which are passed on, until they are answered; more are
    refused as overloaded."""
    max_subscribers: Count = 10_000
    """Most subscriptions of one gateway, and most connections."""
    max_subscriptions: Count = 1_000
    """Most subscriptions of one WebSocket connection."""
    when_slow: WhenSlowSettings = WhenSlowSettings()
