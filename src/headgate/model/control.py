"""The messages between the coordinator and everybody else, one stream per node.

One mechanism carries everything that must be the same everywhere: versioned state is pushed,
applied, then acknowledged. Topologies have a generation, subscriptions a revision; both only grow,
and a receiver ignores what is older than what it has.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.event import PartitionRef
from headgate.model.position import Tally
from headgate.model.subscription import Subscription
from headgate.model.topology import Owner, Role, Topology

SessionRole = Literal["ingest", "router", "gateway", "lane", "client"]
PartitionState = Literal["flowing", "stale", "failed"]
"""`stale`: records are lost, and not everybody has been told. `failed`: nothing more is read."""
PressureLevel = Literal["normal", "soft", "hard"]
BreakerState = Literal["closed", "open", "half_open"]


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all control messages; the tag is the class name."""


# --- to the coordinator --------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """The first message of a stream.

    `incarnation` differs for every start of a process, so that a reconnect and a restart can be
    told apart. For a lane, `node_id` and `incarnation` are its router's; `window`, `attempt`,
    `owns` and `assignment` (the number it was planned under) say what it runs, and `revision` is
    the newest subscription revision it has applied (0: none). A node of `weight` 2 gets twice as
    many partitions as one of weight 1.
    """

    role: SessionRole
    node_id: str
    incarnation: str
    url: str = ""
    ws_url: str = ""
    pid: int = 0
    lane: int = 0
    window: int = 0
    attempt: int = 0
    assignment: int = 0
    owns: tuple[Owner, ...] = ()
    generation: int = 0
    revision: int = 0
    weight: float = 1.0


class CheckIn(Message, frozen=True):
    """I am alive; are you? Anything else a node sends says the first half too."""


class Goodbye(Message, frozen=True):
    """I leave on purpose: nobody has to wait for my lease to end."""


class AckTopology(Message, frozen=True):
    """This generation is applied. `topics` are those that a client routes by it."""

    generation: int
    topics: tuple[str, ...] = ()


class Recall(Message, frozen=True):
    """The last topology a node had, for a coordinator that has lost everything."""

    topology: Topology


class Released(Message, frozen=True):
    """A lane has stopped reading these, settled what was in flight and saved the positions."""

    owners: tuple[Owner, ...]


class EpochTooLow(Message, frozen=True):
    """The store has seen a higher epoch of a log partition than the one it was given out under."""

    ref: PartitionRef
    epoch: int


class AckSubscriptions(Message, frozen=True):
    revision: int


class Register(Message, frozen=True):
    """A gateway's subscriptions: an idempotent upsert, answered with `Registered`."""

    request_id: int
    subscriptions: tuple[Subscription, ...]


class Unregister(Message, frozen=True):
    request_id: int
    ids: tuple[str, ...]


class RegistrationComplete(Message, frozen=True):
    """A gateway that (re)connected has registered all it had."""


class PartitionReport(msgspec.Struct, frozen=True, array_like=True):
    ref: PartitionRef
    head: int
    settled: int
    oldest_unsettled_ms: int
    """Time of the oldest unsettled record, 0 when there is none."""
    tally: Tally = Tally()
    state: PartitionState = "flowing"
    reason: str = ""
    """Why it isn't flowing, in a sentence."""


class GatewayLink(msgspec.Struct, frozen=True):
    """One lane's way to one gateway; the counts are totals since the lane started."""

    gateway_id: str
    waiting: int = 0
    pressure: PressureLevel = "normal"
    breaker: BreakerState = "closed"
    sent: int = 0
    """Batches that were answered."""
    acknowledged: int = 0
    retries: int = 0
    failures: int = 0
    parked: int = 0
    redriven: int = 0
    dead: int = 0
    released: int = 0
    error: str = ""
    """What went wrong the last time, while it still matters."""


class LaneReport(Message, frozen=True, kw_only=True):
    """Totals since the lane started; the coordinator takes differences. `cpu_s` is what its process
    has used. `letters` says what is wrong with the store of parked and dead letters, if anything
    is: then nothing more is read. The `_ms` lists are latencies since the report before: from
    record to acknowledgement, of a delivery's round trip, and of saving a position."""

    partitions: tuple[PartitionReport, ...]
    read: int
    matched: int
    delivered: int
    filter_errors: int
    cpu_s: float = 0.0
    links: tuple[GatewayLink, ...] = ()
    letters: str = ""
    checkpoints_saved: int = 0
    checkpoint_errors: int = 0
    gaps: int = 0
    routing_ms: tuple[float, ...] = ()
    delivery_ms: tuple[float, ...] = ()
    checkpoint_ms: tuple[float, ...] = ()


class IngestReport(Message, frozen=True):
    heads: tuple[tuple[PartitionRef, int], ...]


class GatewayReport(Message, frozen=True):
    """Also renews every subscription of the gateway that has a time-to-live."""

    subscribers: int
    depth: int
    sent: int


class RouterReport(Message, frozen=True):
    """`window` is the last one planned; `change_ms` is how long the last change took: from the
    receipts of one window to the lanes of the next."""

    state: str
    window: int
    change_ms: float


class EndMyWindow(Message, frozen=True):
    """A router that stops asks for the end of its lanes' window, also of lanes yet to appear."""

    window: int
    reason: str


# --- from the coordinator ------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """`resumed` says that the coordinator still had this very process, and all it had told.

    Without it, whatever the node registered before may have been dropped in the meantime.
    `learning` asks for what the node remembers (`Recall`). `url` is where the coordinator serves
    HTTP.
    """

    coordinator_id: str
    lease_ms: int
    check_in_ms: int
    resumed: bool = False
    learning: bool = False
    url: str = ""


class CheckedIn(Message, frozen=True):
    """The answer to a check-in, by which a node knows that its coordinator isn't frozen."""


class NotLeader(Message, frozen=True):
    """Another coordinator decides; `address` is where, if known. The stream is over."""

    address: str


class PushTopology(Message, frozen=True):
    topology: Topology


class Registered(Message, frozen=True):
    """The upsert is in the registry as of `revision`; `errors` maps a refused id to the reason.

    Those in `over_quota` may be taken later, when others have ended.
    """

    request_id: int
    revision: int
    errors: dict[str, str] = {}
    over_quota: tuple[str, ...] = ()


class AdoptionFloor(Message, frozen=True):
    """Every lane that may read a record matches with this revision or a newer one."""

    revision: int


class SubscriptionSnapshot(Message, frozen=True):
    """The whole registry; replaces what the lane had.

    A large one comes in several parts of the same revision, one right after the other; with `more`
    another one follows. Only the last part makes it whole: nothing counts before that.
    """

    revision: int
    subscriptions: tuple[Subscription, ...]
    more: bool = False


class SubscriptionChanges(Message, frozen=True):
    revision: int
    upserts: tuple[Subscription, ...] = ()
    removals: tuple[str, ...] = ()


class Assign(Message, frozen=True):
    """What a router owns from now on; `number` grows with every change."""

    number: int
    sources: tuple[Owner, ...]


class EndWindow(Message, frozen=True):
    """The lane's window is over.

    With `hand_over` the lane returns its receipt and goes on until its successor takes over;
    without, it settles what is in flight, saves the position, and only then returns.
    """

    reason: str
    hand_over: bool = True


class LetGo(Message, frozen=True):
    """The lane must stop reading these partitions, and only these.

    With `settle` it is a handoff: settle what is in flight, save the position, answer `Released`.
    Without, somebody newer has them already.
    """

    owners: tuple[Owner, ...]
    settle: bool


class Refused(Message, frozen=True):
    """The stream is over for a reason that a reconnect doesn't mend."""

    reason: str


ToCoordinator = (
    Hello
    | CheckIn
    | Goodbye
    | AckTopology
    | Recall
    | Released
    | EpochTooLow
    | AckSubscriptions
    | Register
    | Unregister
    | RegistrationComplete
    | LaneReport
    | IngestReport
    | GatewayReport
    | RouterReport
    | EndMyWindow
)
FromCoordinator = (
    Welcome
    | CheckedIn
    | NotLeader
    | PushTopology
    | Registered
    | AdoptionFloor
    | SubscriptionSnapshot
    | SubscriptionChanges
    | Assign
    | EndWindow
    | LetGo
    | Refused
)

__all__ = ["FromCoordinator", "Role", "ToCoordinator"]
