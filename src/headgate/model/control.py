"""The messages between the coordinator and everybody else, one stream per node.

One mechanism carries everything that must be the same everywhere: versioned state is pushed,
applied, then acknowledged. Topologies have a generation, subscriptions a revision; both only grow,
and a receiver ignores what is older than what it has.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.access import ApiToken
from headgate.model.connector import ConnectorReport
from headgate.model.event import PartitionRef
from headgate.model.evidence import GatewayAccount, LaneAccount
from headgate.model.groups import Group
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
    the newest subscription revision it has applied (0: none). What it `wants` it will read once it
    has the subscriptions and has claimed the positions. `intakes` are the connectors that an ingest
    node reads. A node of `weight` 2 gets twice as many partitions as one of weight 1. One that
    `tells` can be asked what it knows of a record (`AskEvidence`).
    """

    role: SessionRole
    node_id: str
    incarnation: str
    url: str = ""
    ws_url: str = ""
    public_url: str = ""
    pid: int = 0
    lane: int = 0
    window: int = 0
    attempt: int = 0
    assignment: int = 0
    owns: tuple[Owner, ...] = ()
    wants: tuple[Owner, ...] = ()
    generation: int = 0
    revision: int = 0
    weight: float = 1.0
    intakes: tuple[Owner, ...] = ()
    tells: bool = False


class CheckIn(Message, frozen=True):
    """I am alive; are you? Anything else a node sends says the first half too."""


class Goodbye(Message, frozen=True):
    """I leave on purpose: nobody has to wait for my lease to end. With `returns` I am about to
    begin anew: what I have is to wait for me until then."""

    returns: bool = False


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """A log partition takes no appends, under its owner's `epoch`, and ends at `head`."""

    ref: PartitionRef
    epoch: int
    head: int


class AckTopology(Message, frozen=True):
    """This generation is applied. `topics` are those that a client routes by it, `undropped` the
    deleted ones of which an ingest node couldn't drop everything yet, `unopened` what it owns and
    couldn't open, and `sealed` what it owns that takes no appends by this topology."""

    generation: int
    topics: tuple[str, ...] = ()
    undropped: tuple[str, ...] = ()
    unopened: tuple[PartitionRef, ...] = ()
    sealed: tuple[Sealed, ...] = ()


class Recall(Message, frozen=True):
    """The last topology a node had, and the API tokens it knew, for a coordinator that has lost
    everything."""

    topology: Topology
    tokens: tuple[ApiToken, ...] = ()
    tokens_revision: int = 0


class Claimed(Message, frozen=True):
    """A lane has claimed the positions of these on this stream, for the first time or again, and
    reads them: its predecessors' count no more. `asked_ms` is that of the `Prove` it answers (0: it
    was not asked)."""

    owners: tuple[Owner, ...]
    asked_ms: int = 0


class Released(Message, frozen=True):
    """A lane has stopped reading these, settled what was in flight and saved the positions; or a
    gateway says so of targets that its consumers have finished with."""

    owners: tuple[Owner, ...]


class EpochTooLow(Message, frozen=True):
    """The store has seen a higher epoch of a log partition, or of a group's target, than the one it
    was given out under."""

    ref: PartitionRef
    epoch: int
    own: int = 0
    """The epoch that it was given to the sender under, where it is a target (0: an older gateway
    doesn't say)."""


class ConnectorTooLow(Message, frozen=True):
    """The stores have met a connector under `epoch`, which isn't below `own`, the one that its
    reader here has, and was given to somebody else."""

    name: str
    epoch: int
    own: int


class StillInHand(Message, frozen=True):
    """A consumer that was asked for a target works on what it has of it, and has said so."""

    owner: Owner


class NoRoom(Message, frozen=True):
    """A gateway can't take a target that a consumer of its own was given."""

    owner: Owner


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


class JoinGroup(Message, frozen=True, kw_only=True):
    """A consumer at this gateway joins a group; answered with `AssignTargets` or `RefuseConsumer`.

    `incarnation` differs for every process. `keys` (how many are expected, 0: nobody knows),
    `where` and `starts` make the group, if there is none yet. A consumer that is still there after
    a broken stream is announced again, with the group it is `known` to be in and what it `owns`.
    One that is `restricted` may not be told what others see.
    """

    topic: str
    group: str
    consumer: str
    incarnation: str
    keys: int = 0
    where: str | None = None
    starts: tuple[int, ...] = ()
    known: Group | None = None
    owns: tuple[Owner, ...] = ()
    restricted: bool = False


class LeaveGroup(Message, frozen=True):
    """A consumer has left `for_good`, or its connection broke and it may be back."""

    group_id: str
    consumer: str
    incarnation: str
    for_good: bool


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
    parked: bool = False
    """Whether something of it is parked for some gateway, as far as is known."""


LATENCY_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Upper bounds of the buckets that latencies are counted in, everywhere."""


class Latencies(msgspec.Struct, frozen=True):
    """How many latencies fell into each bucket of `LATENCY_BUCKETS_S`, those above all of them
    last, and their sum. Without counts there were none."""

    counts: tuple[int, ...] = ()
    sum_s: float = 0.0


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
    soft: int = 0
    """Times the pressure rose to soft."""
    hard: int = 0
    """Times it rose to hard."""
    round_trips: Latencies = Latencies()
    """Of batches that were answered."""


class LaneReport(Message, frozen=True, kw_only=True):
    """Totals since the lane started; the coordinator takes differences. `cpu_s` is what its process
    has used. `letters` says what is wrong with the store of parked and dead letters, if anything
    is: then nothing more is read; `checkpoints` says it of the store of positions. `routing` is the
    time from a record to its acknowledgement by a gateway, `saving` that of saving a position.
    `unclaimed` are those whose positions it should have claimed and can't, for a while now: it
    doesn't read them."""

    partitions: tuple[PartitionReport, ...]
    read: int
    matched: int
    delivered: int
    filter_errors: int
    cpu_s: float = 0.0
    links: tuple[GatewayLink, ...] = ()
    letters: str = ""
    checkpoints: str = ""
    checkpoints_saved: int = 0
    checkpoint_errors: int = 0
    gaps: int = 0
    routing: Latencies = Latencies()
    saving: Latencies = Latencies()
    unclaimed: tuple[Owner, ...] = ()


class IngestReport(Message, frozen=True):
    """`earliest` is the first seq of which the log still has something, of topics with former
    versions."""

    heads: tuple[tuple[PartitionRef, int], ...]
    earliest: tuple[tuple[PartitionRef, int], ...] = ()


class ConnectorReports(Message, frozen=True):
    """How the connectors fare that an ingest node reads, each under the epoch it has it under."""

    reports: tuple[ConnectorReport, ...]


class GatewayReport(Message, frozen=True):
    """Also renews every subscription of the gateway that has a time-to-live. `held` subscribers get
    nothing at the moment: the coordinator had forgotten them, and not every lane knows them yet."""

    subscribers: int
    depth: int
    sent: int
    held: int = 0


class Evidence(Message, frozen=True):
    """The answer to the question of that number, by a lane or by a gateway."""

    number: int
    lane: LaneAccount | None = None
    gateway: GatewayAccount | None = None


class RouterReport(Message, frozen=True):
    """`window` is the last one planned; `change_ms` is how long the last change took: from the
    tallies of one window to the lanes of the next."""

    state: str
    window: int
    change_ms: float


class EndMyWindow(Message, frozen=True):
    """A router that stops asks for the end of its lanes' window, also of lanes yet to appear."""

    window: int
    reason: str


# --- from the coordinator ------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """`resumed` says that all holds that this very gateway was told, also by a coordinator before
    this one.

    Without it, whatever the node registered before may have been dropped in the meantime.
    `learning` asks for what the node remembers (`Recall`). `url` is where the coordinator serves
    HTTP. `tokens` are those of PushTokens, for nodes that people call.
    """

    coordinator_id: str
    lease_ms: int
    check_in_ms: int
    resumed: bool = False
    learning: bool = False
    url: str = ""
    tokens: tuple[ApiToken, ...] = ()
    tokens_revision: int = 0


class CheckedIn(Message, frozen=True):
    """The answer to a check-in, by which a node knows that its coordinator isn't frozen."""


class NotLeader(Message, frozen=True):
    """Another coordinator decides; `address` is where, if known. The stream is over."""

    address: str


class PushTopology(Message, frozen=True):
    topology: Topology


class PushTokens(Message, frozen=True):
    """All API tokens there are, as of `revision`; what is older is ignored."""

    tokens: tuple[ApiToken, ...]
    revision: int


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

    With `hand_over` the lane returns its tally and goes on until its successor takes over;
    without, it settles what is in flight, saves the position, and only then returns. A router is
    told that lanes of `window` have heard it (0: whichever is open; an older coordinator doesn't
    say), and ignores that of one which isn't open any more.
    """

    reason: str
    hand_over: bool = True
    window: int = 0


class Restart(Message, frozen=True):
    """An operator wants the node to stop, to say that it `returns`, and to begin anew."""


class AllRead(Message, frozen=True):
    """To a router that starts: lanes read everything that is its own."""


class LetGo(Message, frozen=True):
    """The lane must stop reading these partitions, and only these; so must the consumers of a
    gateway with these targets.

    With `settle` it is a handoff: settle what is in flight, save the position, answer `Released`.
    Without, somebody newer has them already; a lane that has handed them off may end.
    """

    owners: tuple[Owner, ...]
    settle: bool


class TroubledGateways(Message, frozen=True):
    """Some lane has given up on these gateways for now; a hint, and possibly late."""

    gateway_ids: tuple[str, ...]


class Prove(Message, frozen=True):
    """Asks a lane to claim what it reads once more, and to say so: one of which nobody hears may
    have claimed it."""

    asked_ms: int


class MayClaim(Message, frozen=True):
    """A lane is about to claim: does the coordinator still hear it?"""

    number: int


class ClaimNow(Message, frozen=True):
    """It does; the answer to the question of that number."""

    number: int


class AskEvidence(Message, frozen=True):
    """What do you know of this record? `identity` tells its event from all others of its topic,
    `subscriptions` are those that whoever asks wants to hear about, and `targets` of groups. Only
    for nodes whose hello says that they can be asked."""

    number: int
    ref: PartitionRef
    seq: int
    identity: str = ""
    subscriptions: tuple[str, ...] = ()
    targets: tuple[PartitionRef, ...] = ()


class LettersRevived(Message, frozen=True):
    """An operator wants dead letters to be sent again: look for them now."""


class AssignTargets(Message, frozen=True):
    """All that a consumer owns from now on."""

    group: Group
    consumer: str
    incarnation: str
    owners: tuple[Owner, ...]


class RefuseConsumer(Message, frozen=True):
    """The consumer isn't in the group, or not any more; `code` is that of an error."""

    group_id: str
    consumer: str
    incarnation: str
    code: str
    reason: str


class Refused(Message, frozen=True):
    """The stream is over for a reason that a reconnect doesn't mend."""

    reason: str


ToCoordinator = (
    Hello
    | CheckIn
    | Goodbye
    | AckTopology
    | Recall
    | Claimed
    | MayClaim
    | Released
    | EpochTooLow
    | ConnectorTooLow
    | StillInHand
    | NoRoom
    | AckSubscriptions
    | Register
    | Unregister
    | RegistrationComplete
    | JoinGroup
    | LeaveGroup
    | LaneReport
    | IngestReport
    | ConnectorReports
    | Evidence
    | GatewayReport
    | RouterReport
    | EndMyWindow
)
FromCoordinator = (
    Welcome
    | CheckedIn
    | NotLeader
    | PushTopology
    | PushTokens
    | Registered
    | AdoptionFloor
    | SubscriptionSnapshot
    | SubscriptionChanges
    | Assign
    | EndWindow
    | Restart
    | AllRead
    | LetGo
    | AssignTargets
    | RefuseConsumer
    | TroubledGateways
    | Prove
    | ClaimNow
    | AskEvidence
    | LettersRevived
    | Refused
)

__all__ = ["FromCoordinator", "Role", "ToCoordinator"]
