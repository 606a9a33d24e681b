"""The bodies of the public HTTP contract, as types: what is parsed, what is answered, and what
/openapi.json is generated from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from headgate.model.connectors_api import ConnectorInfo
from headgate.model.control.reports import GatewayLink
from headgate.model.event import ProducedOp
from headgate.model.letters import GatewayLetters
from headgate.model.position import Tally
from headgate.model.subscription import SlowSubscriber
from headgate.model.topology import Placement, RepartitionPhase, Topology

DEFAULT_URL = "http://127.0.0.1:8780"
"""The public address of a Headgate on this machine."""
MAX_EVENTS_PER_REQUEST = 1_000
MAX_PARTITIONS = 1_024
EVENTS_SCHEMA = {"minItems": 1, "maxItems": MAX_EVENTS_PER_REQUEST}
"""Published, and checked elsewhere with a sentence of its own."""

REQUEST_TIMEOUT = "How long to try, such as 500ms or 5s: more than 10ms and at most 15m."
REQUEST_TIMEOUT_DEFAULT = "5s"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
NAME_RULE = (
    "up to 128 letters, digits, dots, dashes and underscores, beginning with a letter or a digit"
)


class CreateTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/topics. Without `partitions` the topic gets `routing.num_partitions`."""

    name: str
    partitions: int | None = None
    placement: Placement = "keyed"


PartitionHealth = Literal["healthy", "lagging", "stale", "failed"]


class TopicPartition(msgspec.Struct, frozen=True):
    """`settled` is the highest seq with everything up to it settled; lag = head - settled. `lag_ms`
    is the age of the oldest record that isn't; without `lag_known` it is at least that.

    A partition is `lagging` when its oldest unsettled record waits for more than 30 s, `stale`
    while records are lost and not every gateway knows, `failed` when nothing more is taken or read;
    `reason` says why."""

    partition: int
    head: int
    settled: int
    lag: int
    lag_ms: int
    owner: str | None
    router: str | None
    epoch: int
    log_epoch: int = 0
    rate: float = 0.0
    """Events per second, over the last seconds."""
    tally: Tally = Tally()
    """What became of the records up to `settled`."""
    state: PartitionHealth = "healthy"
    reason: str = ""
    last_event_ms: int = 0
    """When it was last seen to have grown, since 1970 (0: not since this coordinator leads)."""
    lag_known: bool = True


class Totals(msgspec.Struct, frozen=True):
    """What became of all records: appended = settled + waiting, and settled + repeated =
    acknowledged + parked + dead + released + unmatched + skipped + uncounted.

    `repeated` were settled again after an operator's reset; `uncounted` were settled by a version
    that didn't count yet. `parked` counts what was parked when its turn came, also when it has been
    delivered since."""

    appended: int = 0
    settled: int = 0
    waiting: int = 0
    acknowledged: int = 0
    parked: int = 0
    dead: int = 0
    released: int = 0
    unmatched: int = 0
    skipped: int = 0
    repeated: int = 0
    uncounted: int = 0


class RepartitionTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/topics/{name}/repartition. A dry run only says what would happen."""

    partitions: int
    dry_run: bool = False


class Predecessors(msgspec.Struct, frozen=True):
    """New records of `partition` are delivered once those of the partitions `after` are that were
    there before."""

    partition: int
    after: list[int]


class RepartitionPlan(msgspec.Struct, frozen=True):
    """What another number of partitions means: the share of all keys that change their partition,
    who waits for whom, and how many records are unsettled now, which is what they wait for; at the
    rate at which lanes have settled of late (0: unknown) that takes `drain_s`."""

    topic: str
    partitions: int
    to: int
    moved_share: float
    waits: list[Predecessors]
    backlog: int
    settled_per_s: float
    drain_s: float | None


class RepartitionStatus(msgspec.Struct, frozen=True):
    """A topic on its way to `to` partitions; `waits_for` is a phrase, empty where it goes on by
    itself. `backlog` counts the unsettled records of former versions."""

    to: int
    phase: RepartitionPhase
    waits_for: str
    backlog: int
    since_ms: int


class TopicInfo(msgspec.Struct, frozen=True):
    """`details` has every partition that has records; those from `partitions` on take no more.
    `given_up` says why the last repartition came to nothing, if it did."""

    name: str
    partitions: int
    placement: Placement
    version: int
    details: list[TopicPartition] = []
    adopted: int = 0
    """The oldest generation by which an ingest node or client routes to the topic (0: none
    does)."""
    totals: Totals = msgspec.field(default_factory=Totals)
    repartition: RepartitionStatus | None = None
    given_up: str = ""


class TopicList(msgspec.Struct, frozen=True):
    topics: list[TopicInfo]


class ProduceEvent(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """`event_id` is the idempotency key; one is made up when it's missing. `earlier` is the
    document before the change, for subscribers whose filters matched that one only. `headers` are
    short texts by name that subscribers get with the event: 4 KiB in all."""

    document: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
    key: str | None = None
    op: ProducedOp = "insert"
    event_id: str | None = None
    collection: str = ""
    earlier: (
        Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["object", "null"]})]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class ProduceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`version` is the partitioning version that the sender routed the events under, if it routes:
    then what doesn't belong here is redirected, else it is handed on. `again`: some of the events
    may have been sent before, in another request, perhaps to another node."""

    events: Annotated[list[ProduceEvent], msgspec.Meta(extra_json_schema=EVENTS_SCHEMA)]
    request_timeout: Annotated[str, msgspec.Meta(description=REQUEST_TIMEOUT)] = (
        REQUEST_TIMEOUT_DEFAULT
    )
    version: int | None = None
    again: bool = False


class ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody


class ProduceResult(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Either `partition` and `seq`, or `error`."""

    event_id: str
    partition: int | None = None
    seq: int | None = None
    error: ErrorBody | None = None


class ProduceAnswer(msgspec.Struct, frozen=True):
    events: list[ProduceResult]


class NodeStatus(msgspec.Struct, frozen=True):
    """`state` is ready, starting, draining (it gives its partitions away) or lost (its stream
    broke, its lease has not ended yet)."""

    id: str
    role: str
    state: Literal["ready", "starting", "draining", "lost"]
    url: str = ""
    ws_url: str = ""
    pid: int = 0
    last_seen_ms_ago: int = 0
    partitions: int = 0
    incarnation: str = ""
    """Another one with every start."""
    lapses: int = 0
    """How often, in the last ten minutes, its partitions went to others because it was gone."""


class PlannedMove(msgspec.Struct, frozen=True, rename={"from_id": "from", "to_id": "to"}):
    """A partition that changes hands: of the log between ingest nodes, of the sources between
    routers, or a target between the consumers of a group (then `topic` is `topic/group`), or a
    connector between ingest nodes (then `topic` is its name). `from` is empty where nobody has
    it."""

    kind: Literal["log", "source", "target", "connector"]
    topic: str
    partition: int
    from_id: str
    to_id: str


class MoveStatus(msgspec.Struct, frozen=True, rename={"from_id": "from", "to_id": "to"}):
    """A handoff under way: `releasing` until the former router has let go, then `starting`."""

    topic: str
    partition: int
    from_id: str
    to_id: str
    phase: Literal["releasing", "starting"]
    age_ms: int = 0


class RebalanceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/rebalance."""

    dry_run: bool = False


class RebalanceAnswer(msgspec.Struct, frozen=True):
    """What is moved, or with `dry_run` would be."""

    moves: list[PlannedMove]
    dry_run: bool


ResetTo = Literal["earliest", "latest"] | int


class ResetPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/topics/{name}/partitions/{number}/reset: `to` is the next record to read.

    With `resync`, subscribers are told of what is skipped. A dry run only says what would happen.
    """

    to: ResetTo
    resync: bool = False
    dry_run: bool = False


class ResetAnswer(msgspec.Struct, frozen=True):
    """`next_seq` is read next; `repeats` records that were settled come again, `skips` records
    never come."""

    topic: str
    partition: int
    settled: int
    next_seq: int
    repeats: int
    skips: int
    resync: bool
    dry_run: bool


class LaneStatus(msgspec.Struct, frozen=True):
    """One lane of a router's open window; `pid` is its Python worker's."""

    router: str
    lane: int
    window: int
    attempt: int
    pid: int
    partitions: list[str]
    read: int
    matched: int
    delivered: int
    filter_errors: int
    revision: int
    cpu: float = 0.0
    """The share of a core that its process used, over the last seconds."""
    links: list[GatewayLink] = []
    letters: str = ""
    """What is wrong with the store of parked and dead letters, if anything is: then the lane reads
    nothing more."""
    checkpoints: str = ""
    """What is wrong with the store of positions, if anything is."""


SLOWEST_MAX = 10
"""Slow subscribers that are named of each gateway."""


class GatewayStatus(msgspec.Struct, frozen=True):
    """`depth` deliveries wait for its subscribers; `held` of these get nothing at the moment,
    because the coordinator had forgotten them and not every lane knows them yet."""

    id: str
    subscribers: int
    depth: int
    sent: int
    held: int = 0
    filter_cost_us: int = 0
    """What the filters of its subscriptions cost together, for one document, at worst."""
    slowest: list[SlowSubscriber] = []
    """A few of those who don't keep up, the slowest first."""


class FilterStatus(msgspec.Struct, frozen=True):
    """A filter, and what it costs per document at worst; `together_us` is that of all the
    subscriptions that have it, of which `gateways` and `tenants` name up to five each."""

    topic: str
    where: str
    cost_us: int
    together_us: int
    subscriptions: int
    gateways: list[str] = []
    tenants: list[str] = []


class WindowStatus(msgspec.Struct, frozen=True):
    router: str
    state: str
    window: int
    change_ms: float


class ConsumerStatus(msgspec.Struct, frozen=True):
    """A consumer of a group and the targets it owns; `lost`: its connection broke, and its lease
    hasn't ended."""

    id: str
    gateway: str
    state: Literal["connected", "lost"]
    targets: list[int]


class GroupStatus(msgspec.Struct, frozen=True):
    """`moving` targets are on their way from one consumer to another, `unowned` ones wait for a
    consumer."""

    topic: str
    group: str
    targets: int
    where: str | None
    moving: int
    unowned: int
    consumers: list[ConsumerStatus]


class Status(msgspec.Struct, frozen=True):
    """Answer of GET /v1/status."""

    version: str
    generation: int
    revision: int
    nodes: list[NodeStatus]
    topics: list[TopicInfo]
    lanes: list[LaneStatus]
    gateways: list[GatewayStatus]
    windows: list[WindowStatus]
    subscriptions: int
    ws_url: str = ""
    leader: str = ""
    """The coordinator that decides."""
    learning: bool = False
    """The coordinator has lost its state, and learns from the nodes which of them owns what."""
    clients: int = 0
    """Clients that follow the topology."""
    moves: list[MoveStatus] = []
    totals: Totals = msgspec.field(default_factory=Totals)
    letters: list[GatewayLetters] = []
    """What is parked and dead now, by gateway."""
    letters_error: str = ""
    """Why `letters` couldn't be counted, if it couldn't."""
    checkpoints_error: str = ""
    """Why the positions shown may be old, if the coordinator can't read them."""
    groups: list[GroupStatus] = []
    """Consumer groups."""
    leads_ms: int | None = None
    """For how long the coordinator has led, where that is known."""
    seen: list[str] = []
    """The roles of which it has heard a node since then."""
    connectors: list[ConnectorInfo] = []
    filters: list[FilterStatus] = []
    """The costliest filters, the one first whose subscriptions cost most together."""


class TopologyAnswer(msgspec.Struct, frozen=True):
    """Answer of GET /v1/topology. `control` is where a client opens a control stream (host:port)
    to be told of changes; empty when there is no such place."""

    topology: Topology
    control: str = ""


class WhereToSubscribe(msgspec.Struct, frozen=True):
    """Answer of GET /v1/gateway, which the gateway gives by itself, also while other roles are
    away."""

    ws_url: str


class PartitionVitals(msgspec.Struct, frozen=True):
    """How one partition fares: `lag` in records, `lag_ms` the age of the oldest that isn't settled
    (without `lag_known` it is at least that), `event_rate` in events per second. `last_event` is
    null where nobody has seen one yet."""

    id: int
    topic: str
    status: PartitionHealth
    lag: int = 0
    lag_ms: int = 0
    event_rate: float = 0.0
    last_event: datetime | None = None
    reason: str = ""
    lag_known: bool = True


HealthStatus = Literal["healthy", "degraded", "unhealthy"]


class Health(msgspec.Struct, frozen=True):
    """Answer of GET /health on every role, with 503 when it is unhealthy: when more than half of
    the partitions aren't healthy, or the node stops. `reasons` says all that isn't well."""

    status: HealthStatus
    role: str
    version: str
    uptime_s: float
    partitions: list[PartitionVitals] = []
    """Those that the role is concerned with: an ingest node's logs, a router's sources, all at the
    coordinator, none at a gateway."""
    reasons: list[str] = []
