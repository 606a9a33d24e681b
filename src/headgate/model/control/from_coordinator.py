"""What the coordinator says to ingest nodes, routers, lanes, gateways and clients."""

from __future__ import annotations

import msgspec

from headgate.model.access import ApiToken
from headgate.model.control.message import Message
from headgate.model.event import PartitionRef
from headgate.model.groups import Group
from headgate.model.subscription import Subscription
from headgate.model.topology import Owner, Topology


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
    errors: dict[str, str] = msgspec.field(default_factory=dict)
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
    told which `window` has lanes that have heard it (0, as from an older coordinator: the one that
    is open), and ignores the message when another window is open by now.
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
    Without, newer owners have them already; a lane that has handed them off may end.
    """

    owners: tuple[Owner, ...]
    settle: bool


class TroubledGateways(Message, frozen=True):
    """Some lane has given up on these gateways for now; a hint, and possibly late."""

    gateway_ids: tuple[str, ...]


class Prove(Message, frozen=True):
    """Asks a lane to claim its partitions once more, and to say so: a lane that isn't heard may
    have claimed them."""

    asked_ms: int


class ClaimNow(Message, frozen=True):
    """It does; the answer to the question of that number."""

    number: int


class AskEvidence(Message, frozen=True):
    """What do you know of this record? Asked for somebody who wants it explained, about these
    `subscriptions` and these `targets` of groups. Only for nodes whose hello says that they can be
    asked."""

    number: int
    ref: PartitionRef
    seq: int
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
