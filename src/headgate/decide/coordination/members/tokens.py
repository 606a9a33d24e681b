"""The API tokens, and the nodes that are told of them.

Kept with everything else that the coordinator must remember, then pushed to every node that people
call, which goes on with what it knows while the coordinator is away. Invariant: a token counts
nowhere before it is kept, and one that was revoked counts nowhere after it was told; the revision
grows with every change, and nobody goes back to a lower one.
"""

from __future__ import annotations

from headgate.decide.access.claims import of_token
from headgate.decide.access.deciding import may
from headgate.decide.coordination.effects import Effect, Persist, Send
from headgate.decide.coordination.state import State
from headgate.errors import HeadgateError, InvalidRequest, NotFound, TokenExists, TooLarge
from headgate.model.access import TOKENS_MAX, ApiToken
from headgate.model.control.from_coordinator import PushTokens
from headgate.model.control.to_coordinator import SessionRole

TOLD: tuple[SessionRole, ...] = ("gateway", "ingest", "router")


def creation_refusal(state: State, token: ApiToken, *, first: bool) -> HeadgateError | None:
    """Why there can't be such a token, which was made just now; `first`: it is to be the first
    administrator's."""
    if first and (names := administrators(state, token.created_ms)):
        return InvalidRequest(
            f"{names[0]} is an administrator already: let them make the next token, or revoke it"
        )
    if token.name in state.tokens:
        return TokenExists(
            f"there is a token {token.name} already: revoke it first, or choose another name",
            name=token.name,
        )
    if len(state.tokens) >= TOKENS_MAX:
        return TooLarge(f"there are {TOKENS_MAX} tokens, the most there can be; use JWTs")
    return None


def administrators(state: State, now_ms: int) -> list[str]:
    """The tokens that may make tokens, and haven't expired."""
    return [
        name
        for name, token in sorted(state.tokens.items())
        if not 0 < token.expires_ms <= now_ms and may(of_token(token), "write", "tokens")
    ]


def revocation_refusal(state: State, name: str) -> HeadgateError | None:
    if name in state.tokens:
        return None
    return NotFound(f"there is no token {name[:128]}; headgate token list shows all", name=name)


def put(state: State, token: ApiToken) -> list[Effect]:
    state.tokens[token.name] = token
    return _changed(state)


def revoke(state: State, name: str) -> list[Effect]:
    del state.tokens[name]
    return _changed(state)


def recalled(state: State, tokens: tuple[ApiToken, ...], revision: int) -> list[Effect]:
    """A node remembers what a coordinator that has lost everything has forgotten."""
    if not state.learning.is_on or revision <= state.tokens_revision:
        return []
    state.tokens = {token.name: token for token in tokens}
    state.tokens_revision = revision
    return [Persist(state.to_store()), *_pushed(state)]


def _changed(state: State) -> list[Effect]:
    state.tokens_revision += 1
    return [Persist(state.to_store()), *_pushed(state)]


def _pushed(state: State) -> list[Effect]:
    message = PushTokens(tuple(state.tokens.values()), state.tokens_revision)
    return [Send(session, message) for role in TOLD for session in state.sessions_of(role)]
