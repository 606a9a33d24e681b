"""What the coordinator's decisions ask its shell to do, in order."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.errors import HeadgateError
from headgate.model.control import FromCoordinator
from headgate.model.stored import StoredState
from headgate.model.topology import Owner


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `message` to one session; if that session is gone, nothing is lost by it."""

    session: int
    message: FromCoordinator


@dataclass(frozen=True, slots=True)
class Hang:
    """End a session after what was sent to it."""

    session: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Make `state` durable before any later effect is carried out."""

    state: StoredState


@dataclass(frozen=True, slots=True)
class FenceCheckpoints:
    """Claim each partition's checkpoint at its new epoch before any later effect, and put it where
    an operator wants it (`State.resets`).

    The cluster wants to know what came of it: `Cluster.fenced`, also where a higher epoch holds
    one. While the store is away it hears nothing, and asks again.
    """

    owners: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell whoever asked why not. Never with other effects: nothing was changed."""

    error: HeadgateError


Effect = Send | Hang | Persist | FenceCheckpoints | Refuse
