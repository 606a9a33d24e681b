"""The bodies of the public HTTP contract, as types: what is parsed, what is answered, and what
/openapi.json is generated from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headgate.model.event import Op
from headgate.model.topology import Placement, Topology

DEFAULT_URL = "http://127.0.0.1:8780"
"""The public address of a Headgate on this machine."""
MAX_EVENTS_PER_REQUEST = 1_000
MAX_PARTITIONS = 1_024
EVENTS_SCHEMA = {"minItems": 1, "maxItems": MAX_EVENTS_PER_REQUEST}
"""Published, and checked elsewhere with a sentence of its own."""

REQUEST_TIMEOUT = "How long to try, such as 500ms or 5s: more than 10ms and at most 15m."
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
NAME_RULE = (
    "up to 128 letters, digits, dots, dashes and underscores, beginning with a letter or a digit"
)


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/topics. Without `partitions` the topic gets `routing.num_partitions`."""

    name: str
    partitions: int | None = None
    placement: Placement = "keyed"


class TopicPartition(msgspec.Struct):
    """`settled` is the highest seq with everything up to it settled; lag = head - settled."""

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


class TopicInfo(msgspec.Struct):
    name: str
    partitions: int
    placement: Placement
    version: int
    details: list[TopicPartition] = []
    adopted: int = 0
    """The oldest generation by which anybody routes to the topic (0: nobody does)."""


class TopicList(msgspec.Struct):
    topics: list[TopicInfo]


class ProduceEvent(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """`event_id` is the idempotency key; one is made up when it's missing."""

    document: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
    key: str | None = None
    op: Op = "insert"
    event_id: str | None = None
    collection: str = ""


class ProduceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`version` is the partitioning version that the sender routed the events under, if it routes:
    then what doesn't belong here is redirected, else it is handed on."""

    events: Annotated[list[ProduceEvent], msgspec.Meta(extra_json_schema=EVENTS_SCHEMA)]
    request_timeout: Annotated[str, msgspec.Meta(description=REQUEST_TIMEOUT)] = "5s"
    version: int | None = None


class ErrorBody(msgspec.Struct):
    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorAnswer(msgspec.Struct):
    error: ErrorBody


class ProduceResult(msgspec.Struct, omit_defaults=True, gc=False):
    """Either `partition` and `seq`, or `error`."""

    event_id: str
    partition: int | None = None
    seq: int | None = None
    error: ErrorBody | None = None


class ProduceAnswer(msgspec.Struct):
    events: list[ProduceResult]


class NodeStatus(msgspec.Struct):
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


class PlannedMove(msgspec.Struct, rename={"from_id": "from", "to_id": "to"}):
    """A partition that changes hands: of the log between ingest nodes, or of the sources between
    routers. `from` is empty where nobody has it."""

    kind: Literal["log", "source"]
    topic: str
    partition: int
    from_id: str
    to_id: str


class MoveStatus(msgspec.Struct, rename={"from_id": "from", "to_id": "to"}):
    """A handoff under way: `releasing` until the former router has let go, then `starting`."""

    topic: str
    partition: int
    from_id: str
    to_id: str
    phase: Literal["releasing", "starting"]
    age_ms: int = 0


class RebalanceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/rebalance."""

    dry_run: bool = False


class RebalanceAnswer(msgspec.Struct):
    """What is moved, or with `dry_run` would be."""

    moves: list[PlannedMove]
    dry_run: bool


class LaneStatus(msgspec.Struct):
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


class GatewayStatus(msgspec.Struct):
    id: str
    subscribers: int
    depth: int
    sent: int


class WindowStatus(msgspec.Struct):
    router: str
    state: str
    window: int
    change_ms: float


class Status(msgspec.Struct):
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
    """It has lost its state, and learns who owns what."""
    clients: int = 0
    """Clients that follow the topology."""
    moves: list[MoveStatus] = []


class TopologyAnswer(msgspec.Struct):
    """Answer of GET /v1/topology. `control` is where a client opens a control stream (host:port)
    to be told of changes; empty when there is no such place."""

    topology: Topology
    control: str = ""


class Health(msgspec.Struct):
    """Answer of GET /health on every role."""

    status: Literal["healthy", "degraded", "unhealthy"]
    role: str
    version: str
    uptime_s: float
