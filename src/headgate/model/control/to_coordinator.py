"""What ingest nodes, routers, lanes, gateways and clients say to the coordinator."""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.access import ApiToken
from headgate.model.control.message import Message
from headgate.model.control.reports import (
    ConnectorReports,
    GatewayReport,
    IngestReport,
    LaneReport,
    RouterReport,
)
from headgate.model.event import PartitionRef
from headgate.model.evidence import GatewayAccount, LaneAccount
from headgate.model.groups import Group
from headgate.model.subscription import Subscription
from headgate.model.topology import Owner, Topology

SessionRole = Literal["ingest", "router", "gateway", "lane", "client"]


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


class MayClaim(Message, frozen=True):
    """A lane is about to claim: does the coordinator still hear it?"""

    number: int


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
    reader here has, and was given to another node."""

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
    """A gateway's subscriptions: an idempotent upsert, answered with `Registered`. `new` are the
    ids of those that their subscribers haven't been told of yet."""

    request_id: int
    subscriptions: tuple[Subscription, ...]
    new: tuple[str, ...] = ()


class Unregister(Message, frozen=True):
    request_id: int
    ids: tuple[str, ...]


class RegistrationComplete(Message, frozen=True):
    """A gateway that (re)connected has registered all it had."""


class JoinGroup(Message, frozen=True, kw_only=True):
    """A consumer at this gateway joins a group; answered with `AssignTargets` or `RefuseConsumer`.

    `incarnation` differs for every process. `keys` (how many are expected, 0: unknown),
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


class Evidence(Message, frozen=True):
    """The answer to the question of that number, by a lane or by a gateway."""

    number: int
    lane: LaneAccount | None = None
    gateway: GatewayAccount | None = None


class EndMyWindow(Message, frozen=True):
    """A router that stops asks for the end of its lanes' window, also of lanes yet to appear."""

    window: int
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
