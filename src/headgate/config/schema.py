"""Every setting there is: its name, type, bounds, default and meaning.

Invariant: the models are immutable and refuse what they don't know; a value inside them is already
in the unit the code works with (seconds, bytes). What several fields must agree on is in rules.py.
The docstring below a field is its documentation, wherever it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from headgate.config.cluster_tokens import references_fault
from headgate.config.units import DurationUnit, SizeUnit, seconds, size_bytes
from headgate.decide.http.web_pages import are_origins
from headgate.decide.links.passes import TOKEN_CHARS_MIN
from headgate.decide.planning.plan import IMBALANCE_MAX
from headgate.decide.planning.starting_point import WEIGHT_MAX, WEIGHT_MIN


@dataclass(frozen=True, slots=True)
class Wording:
    """What a text must be, in words, where a pattern checks it."""

    allowed: str


@dataclass(frozen=True, slots=True)
class Secret:
    """Marks a text that may hold a password, which is never shown. `whole`: it is one."""

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Several:
    """Marks a text of several with commas in between, which a file may also have as a list."""


def _origins(text: str) -> str:
    if not are_origins(text):
        raise ValueError(text)
    return text


def _cluster_tokens(text: str) -> str:
    if (fault := references_fault(text)) is not None:
        raise ValueError(fault)
    return text


_ENDPOINT = r"(http://)?(\[[0-9A-Fa-f:.]+\]|[^\s/:,\[\]]+):\d{1,5}/?"

LogLevel = Literal["error", "warn", "info", "verbose", "debug", "silly"]
WhenSlow = Literal["park", "drop_oldest", "disconnect"]

Duration = Annotated[float, DurationUnit(), Field(gt=0)]
DurationMs = Annotated[float, DurationUnit(plain_ms=True), Field(gt=0)]
"""For the settings that were plain milliseconds before they had units."""

Size = Annotated[int, SizeUnit(), Field(ge=1)]
Count = Annotated[int, Field(ge=1)]
Imbalance = Annotated[int, Field(ge=0, le=IMBALANCE_MAX)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Percent = Annotated[int, Field(ge=1, le=100)]
Host = Annotated[str, Wording("a host name or address"), Field(pattern=r"^[^\s/]+$")]
Advertised = Annotated[str, Wording("a host name or address"), Field(pattern=r"^[^\s/]*$")]
"""What others call a role that listens on all addresses of its machine (empty: as it listens)."""
_HOST = r"(\[[0-9A-Fa-f:.]+\]|[^\s/:,\[\]]+)(:\d{1,5})?"
Hosts = Annotated[
    str,
    Wording("an address, or several such as 10.0.0.1,10.0.0.2:8100"),
    Field(pattern=rf"^{_HOST}(,{_HOST})*$"),
]
Origins = Annotated[
    str,
    Several(),
    Wording(
        "origins such as https://app.example.com,http://localhost:3000 (scheme, host, perhaps a "
        "port, no path), or * for every web page"
    ),
    AfterValidator(_origins),
]
FieldPath = Annotated[
    str,
    Wording("a field, or a path such as meta.deleted"),
    Field(pattern=r"^([^\s.]+(\.[^\s.]+)*)?$"),
]
_PATH = r"[^\s.,]+(\.[^\s.,]+)*"
FieldPaths = Annotated[
    str,
    Several(),
    Wording("fields, or paths such as card.number,email, with commas in between"),
    Field(pattern=rf"^({_PATH}(\s*,\s*{_PATH})*)?$"),
]
Weight = Annotated[float, Field(ge=WEIGHT_MIN, le=WEIGHT_MAX)]
NodeName = Annotated[
    str,
    Wording("up to 128 letters, digits, dots, hyphens and underscores"),
    Field(pattern=r"^[A-Za-z0-9._-]{0,128}$"),
]
DemoControl = Annotated[
    str,
    Wording("an address such as http://127.0.0.1:43210"),
    Field(pattern=r"^(http://127\.0\.0\.1:\d{1,5})?$"),
]
SparkMaster = Annotated[
    str,
    # Plain local[N] never retries a task: one killed worker would end the router.
    Wording("local[THREADS,TRIES] such as local[8,4], spark://HOST:PORT, k8s://URL or yarn"),
    Field(
        pattern=r"^(local\[([1-9]\d*|\*),[1-9]\d*\]|local-cluster\[\d+,\d+,\d+\]"
        r"|(spark|k8s)://\S+|yarn)$"
    ),
]
EtcdEndpoints = Annotated[
    str,
    Wording("addresses such as 10.0.0.1:2379,10.0.0.2:2379"),
    Field(pattern=rf"^({_ENDPOINT}(\s*,\s*{_ENDPOINT})*)?$"),
]
KeyPrefix = Annotated[
    str,
    Wording("a path such as /headgate, of letters, digits, dots, hyphens and underscores"),
    Field(pattern=r"^(/[A-Za-z0-9._-]+)+$"),
]
MongoUrl = Annotated[
    str,
    Secret(),
    Wording("the address of a MongoDB replica set, as mongodb://…"),
    Field(pattern=r"^(mongodb(\+srv)?://\S+)?$"),
]
MongoDatabase = Annotated[
    str,
    Wording("up to 63 letters, digits, hyphens and underscores"),
    Field(pattern=r"^[A-Za-z0-9_-]{1,63}$"),
]
Token = Annotated[
    str,
    Secret(whole=True),
    Wording("a token of visible ASCII characters"),
    Field(pattern=r"^[!-~]*$"),
]
AdminToken = Annotated[
    str,
    Secret(whole=True),
    Wording("a random token of at least 22 visible ASCII characters"),
    Field(pattern=r"^([!-~]{22,})?$"),
]
JwtSecret = Annotated[
    str,
    Secret(whole=True),
    Wording("a random secret of at least 32 characters"),
    Field(pattern=r"^(.{32,})?$"),
]
_ALGORITHM = r"(HS256|RS256|ES256|EdDSA)"
JwtAlgorithms = Annotated[
    str,
    Several(),
    Wording("one or more of HS256, RS256, ES256 and EdDSA, with commas in between"),
    Field(pattern=rf"^{_ALGORITHM}(,{_ALGORITHM})*$"),
]
JwksAddress = Annotated[
    str,
    Wording("an address as https://…, or http:// on this machine"),
    Field(
        pattern=r"^(https://[^\s]+|http://(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?(/[^\s]*)?)?$"
    ),
]
ClaimName = Annotated[
    str, Wording("the name of a claim"), Field(pattern=r"^[A-Za-z0-9_:/.-]{0,128}$")
]
ClusterTokenReferences = Annotated[
    str,
    Secret(whole=True),
    Several(),
    Wording(
        f"one or two of: a secret of {TOKEN_CHARS_MIN} or more visible ASCII characters without a "
        "comma, env:VARIABLE, file:PATH"
    ),
    AfterValidator(_cluster_tokens),
]
_NATS_SERVER = r"(nats|tls)://[^\s,]+"
NatsServers = Annotated[
    str,
    Secret(),
    Wording("addresses such as nats://10.0.0.1:4222,nats://10.0.0.2:4222"),
    Field(pattern=rf"^({_NATS_SERVER}(,{_NATS_SERVER})*)?$"),
]
NatsSubject = Annotated[
    str,
    Wording("a subject such as headgate.deliver, of letters, digits, hyphens and underscores"),
    Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"),
]
SparkMemory = Annotated[
    str, Wording("an amount such as 800m or 2g"), Field(pattern=r"^[1-9]\d*[mg]$")
]

LONGEST_REQUEST_S = seconds("15m")
"""The longest request_timeout a producer may ask for; an idempotency key must outlive it."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


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


class RetentionSettings(Section):
    max_age: Duration = seconds("7d")
    """Age from which on records are dropped."""
    max_size: Size = size_bytes("10GiB")
    """Size of a partition's records above which the oldest are dropped."""
    past_settled: bool = False
    """Drop also what no router has settled yet; false keeps it, whatever its age and size."""
    every: Duration = seconds("1m")
    """Time between two looks for what can be dropped."""


class LogSettings(Section):
    backend: Literal["embedded", "postgresql"] = "embedded"
    """Where records are kept: in files of the data folder, or in PostgreSQL."""
    dsn: Annotated[str, Secret(), Wording("the address of a PostgreSQL database")] = ""
    """Address of the database, as postgresql://user@host/database (for PostgreSQL only)."""
    retention: RetentionSettings = RetentionSettings()


class EtcdSettings(Section):
    endpoints: EtcdEndpoints = ""
    """Addresses of the cluster's members for clients, with commas in between."""
    prefix: KeyPrefix = "/headgate"
    """Beginning of every key; clusters of Headgate that share an etcd need one each."""
    user: str = ""
    """User, where etcd asks for one (empty: none)."""
    password: Annotated[str, Secret(whole=True), Wording("the user's password")] = ""
    """Its password."""


class MongoSettings(Section):
    url: MongoUrl = ""
    """Address of a replica set, as mongodb://user@host,host2/?replicaSet=name."""
    database: MongoDatabase = "headgate"
    """Database; clusters of Headgate that share a MongoDB need one each."""


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


class ClusterSettings(Section):
    tokens: ClusterTokenReferences = ""
    """What the roles of a cluster show each other, the same everywhere (empty: they show nothing).
    Of two both are taken, and the first is shown; see docs/security.md."""


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


class SubscriptionsSettings(Section):
    soft_delete: FieldPath = ""
    """Field that marks a record as deleted: an update that sets it becomes a delete, one that
    clears it an insert (empty: no field does)."""
    max_per_gateway: Count = 10_000
    """Most subscriptions of one gateway that the coordinator takes."""
    max_per_tenant: Count = 50_000
    """Most subscriptions that name the same tenant."""
    max_total: Count = 1_000_000
    """Most subscriptions in all."""
    max_cost_per_gateway: Annotated[Duration, Field(ge=seconds("10ms"))] = seconds("1s")
    """Most time that the filters of one gateway may take together for one document, at worst."""
    max_cost_per_tenant: Annotated[Duration, Field(ge=seconds("10ms"))] = seconds("1s")
    """The same for the filters of the subscriptions that name the same tenant."""
    ttl: Annotated[float, DurationUnit(), Field(ge=0)] = 0.0
    """Time without a renewal by its gateway after which one ends (0s: with the gateway's lease)."""


class UiSettings(Section):
    mask: FieldPaths = ""
    """Fields whose values people aren't shown who look at records (empty: none); a list on the way
    stands for each of its elements, and _key is a record's key."""


class EvidenceSettings(Section):
    size: Annotated[int, Field(ge=0, le=1_000_000)] = 20_000
    """What each lane process and each gateway remembers of deliveries, for `headgate explain`:
    records, and for each the subscriptions it was for (0: nothing)."""
    age: Annotated[Duration, Field(ge=seconds("1s"), le=seconds("1d"))] = seconds("10m")
    """How long it is remembered, at most."""


class ConsumersSettings(Section):
    shard_size: Count = 100
    """Keys per target partition of a consumer group."""


class DemoSettings(Section):
    count: Count = 50
    """Messages per second and partition."""
    partitions: Annotated[int, Field(ge=1, le=1_024)] = 4
    """Partitions of the demo's topic."""
    aircraft: Count = 400
    """Aircraft that report their position."""
    window: Annotated[Duration, Field(ge=seconds("1s"))] = seconds("10s")
    """The router's window in the demo, short enough to show several."""
    control: DemoControl = ""
    """Where the demo that runs this system takes what its page asks for (empty: no demo does, and
    there is no such page); `headgate demo` sets it."""


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


class CheckpointSettings(Section):
    backend: Literal["embedded", "etcd", "mongo"] = "embedded"
    """Where positions are kept: in a file of the data folder, in etcd or in MongoDB."""
    interval: Duration = seconds("5s")
    """Longest time between two saves of a partition's position."""
    event_count: Count = 1_000
    """Most settled events between two saves."""


class DedupSettings(Section):
    enabled: bool = True
    """Drop repeats at the gateway."""
    cache_size: Count = 10_000
    """Events remembered per gateway."""
    ttl: Duration = seconds("3m")
    """How long an event is remembered."""


class GapDetectionSettings(Section):
    enabled: bool = True
    """Tell subscribers of records that can't be read any more; false only counts and logs them."""
    max_gap: Duration = seconds("5m")
    """Time that lost records may span; more makes the partition stale until subscribers know."""


class CircuitBreakerSettings(Section):
    threshold: Count = 5
    """Failures in a row after which a gateway is left alone."""
    timeout: Duration = seconds("30s")
    """How long it is left alone before one probe."""


class ShutdownSettings(Section):
    flush_timeout: Duration = seconds("10s")
    """Longest wait for what is in flight when a node stops."""
    checkpoint_timeout: Duration = seconds("5s")
    """Longest wait for the final checkpoint."""


class ReliabilitySettings(Section):
    checkpoint: CheckpointSettings = CheckpointSettings()
    dedup: DedupSettings = DedupSettings()
    gap_detection: GapDetectionSettings = GapDetectionSettings()
    circuit_breaker: CircuitBreakerSettings = CircuitBreakerSettings()
    shutdown: ShutdownSettings = ShutdownSettings()


class JwtSettings(Section):
    issuer: str = ""
    """Who makes the JWTs that are taken: their `iss` (empty: none are taken)."""
    audience: str = ""
    """Whom they must be made for: one of their `aud`."""
    algorithms: JwtAlgorithms = "RS256,ES256,EdDSA"
    """Signatures that are taken."""
    secret: JwtSecret = ""
    """The secret shared with the issuer, for HS256."""
    keys: str = ""
    """File of the issuer's public keys, as PEM or as a JWK set."""
    jwks: JwksAddress = ""
    """Address of the issuer's JWK set, whose keys may change; fetched when a new one is met."""
    refresh: Annotated[Duration, Field(ge=seconds("1s"))] = seconds("10m")
    """Time after which that address is asked again, so that a withdrawn key counts no more."""
    leeway: Annotated[float, DurationUnit(), Field(ge=0, le=300)] = seconds("5s")
    """How far the issuer's clock may be from ours."""
    grants: str = ""
    """What everybody with such a JWT is granted; several with semicolons in between."""
    grants_claim: ClaimName = "grants"
    """Claim that has more grants, as a list of texts (empty: none)."""
    tenant_claim: ClaimName = "tenant"
    """Claim that names the tenant (empty: none)."""
    name_claim: Annotated[ClaimName, Field(min_length=1)] = "sub"
    """Claim that names who it is."""


class AuditSettings(Section):
    folder: str = ""
    """Folder of the audit trail, a file per node (empty: audit, in the data folder)."""
    max_size: Size = size_bytes("16MiB")
    """Size of a file above which it is begun anew."""
    keep: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Former files of each node that are kept."""


class LimitSettings(Section):
    produce_events: Annotated[int, Field(ge=0)] = 0
    """Most events per second that an ingest node takes of one principal, or of one address where
    nobody says who they are; a token's own limit counts before this (0: no limit)."""
    produce_bytes: Annotated[int, SizeUnit(), Field(ge=0)] = 0
    """The same in bytes of their requests."""


class SecuritySettings(Section):
    enabled: bool = False
    """Everybody has to say who they are; also so where `admin_token` or a `jwt.issuer` is set."""
    admin_token: AdminToken = ""
    """An administrator's token, beside those of `headgate token create`."""
    jwt: JwtSettings = JwtSettings()
    cluster: ClusterSettings = ClusterSettings()
    limits: LimitSettings = LimitSettings()
    audit: AuditSettings = AuditSettings()

    @property
    def is_on(self) -> bool:
        """Whether anybody has to say who they are."""
        return self.enabled or bool(self.admin_token) or bool(self.jwt.issuer)


class Config(Section):
    """The whole configuration; `Config()` is the one without any setting changed."""

    log_level: LogLevel = "info"
    """Least important level that is logged."""
    client_id: NodeName = ""
    """Stable name of this node, so that it keeps its partitions (empty: made up at start)."""
    data: Path = Path("headgate-data")
    """Folder of the log, the positions and the coordinator's state."""
    log_file_size: Size = size_bytes("16MiB")
    """Size above which `headgate up` begins a role's log file anew; the former one is kept."""
    insecure: bool = False
    """Listen also where others than this machine reach a role that nothing guards, and may do
    whatever it does."""
    public: PublicSettings = PublicSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    ingest: IngestSettings = IngestSettings()
    log: LogSettings = LogSettings()
    etcd: EtcdSettings = EtcdSettings()
    mongo: MongoSettings = MongoSettings()
    router: RouterSettings = RouterSettings()
    gateway: GatewaySettings = GatewaySettings()
    transport: TransportSettings = TransportSettings()
    security: SecuritySettings = SecuritySettings()
    subscriptions: SubscriptionsSettings = SubscriptionsSettings()
    ui: UiSettings = UiSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    consumers: ConsumersSettings = ConsumersSettings()
    demo: DemoSettings = DemoSettings()
    routing: RoutingSettings = RoutingSettings()
    reliability: ReliabilitySettings = ReliabilitySettings()
