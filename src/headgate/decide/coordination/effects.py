"""What the coordinator's decisions ask its shell to do, in order.

Each effect says all that it takes to carry it out, without a look at the state, which may be that
of a later event by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.decide.lane.checkpoints import Reset
from headgate.errors import HeadgateError
from headgate.model.control.from_coordinator import FromCoordinator
from headgate.model.event import PartitionRef
from headgate.model.groups import Group
from headgate.model.stored import StoredState
from headgate.model.topology import Owner


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `message` to one session; if that session is gone, nothing is lost by it."""

    session: int
    message: FromCoordinator


@dataclass(frozen=True, slots=True)
class EndSession:
    """End a session after what was sent to it."""

    session: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Make `state` durable before any later effect is carried out."""

    state: StoredState


@dataclass(frozen=True, slots=True)
class FenceCheckpoints:
    """Claim each partition's checkpoint at its new epoch before any later effect, and put those in
    `resets` where an operator wants them, those in `again` back to there if they are beyond it.
    Where an operator wants one back, the positions of `groups` go back first, also those in the
    partitions that are `behind` it, to there; `epochs` are those of their targets.

    The cluster wants to know what came of it: `Cluster.fenced`, also where a higher epoch holds
    one, or where it can't be claimed (`Unclaimed`). It asks again for those.
    """

    owners: tuple[Owner, ...]
    resets: Mapping[PartitionRef, Reset] = field(default_factory=dict)
    again: Mapping[PartitionRef, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    behind: Mapping[PartitionRef, Mapping[int, int]] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """The position of `owner`'s partition can't be claimed, and `why`; after that was tried, the
    log ended at `head` (None: nobody knows)."""

    owner: Owner
    why: str
    head: int | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the caller why not. Never with other effects: nothing was changed."""

    error: HeadgateError


Effect = Send | EndSession | Persist | FenceCheckpoints | Refuse
