"""The bodies of /v1/tokens, /v1/tickets and /v1/session."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.model.access import Limits
from headgate.model.api import NAME_PATTERN

TokenName = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]


class CreateToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`expires` is a duration such as 30d; without it the token is good until it is revoked.
    `first`: it is the first administrator's, made on the coordinator's machine."""

    name: TokenName
    grants: Annotated[list[str], msgspec.Meta(min_length=1)]
    tenant: Annotated[str, msgspec.Meta(pattern=rf"^$|{NAME_PATTERN}")] = ""
    expires: str | None = None
    limits: Limits = Limits()
    first: bool = False


class TokenInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What may be known of a token; `expires_ms` 0: never."""

    name: str
    grants: list[str]
    created_ms: int
    tenant: str = ""
    expires_ms: int = 0
    limits: Limits = Limits()


class CreatedToken(msgspec.Struct, frozen=True):
    """The `token` itself is shown this once, and nobody can find it out later."""

    token: str
    about: TokenInfo


class TokenList(msgspec.Struct, frozen=True):
    tokens: list[TokenInfo]


class Ticket(msgspec.Struct, frozen=True):
    """Good for once, as `?ticket=` of /v1/subscribe at the gateway that gave it out."""

    ticket: str
    expires_in_ms: int


class CreateSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/session."""

    token: Annotated[str, msgspec.Meta(min_length=1, max_length=8_192)]


class Session(msgspec.Struct, frozen=True):
    """`required`: callers have to log in. `name` is the principal that is logged in (empty: none
    is), and `may` what it may do at least with some topics, such as `write:topics`."""

    required: bool
    may: list[str]
    name: str = ""
