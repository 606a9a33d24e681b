"""API tokens over HTTP: made, listed and revoked.

Invariant: a token is said once, to the principal that had it made, and nothing keeps it: what is
stored and logged is its SHA-256 at most. What an answer says is durable, and every node that is
connected has been told.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from headgate.decide.access.grants import all_parsed, all_written
from headgate.decide.durations import parse_duration_ms
from headgate.errors import InvalidRequest
from headgate.model.access import TOKEN_BYTES, TOKEN_PREFIX, ApiToken
from headgate.model.access_api import CreatedToken, CreateToken, TokenInfo, TokenList
from headgate.model.http import Request, Response, Route, json_response
from headgate.ports.machine import Machine
from headgate.services.coordinator.term import Term
from headgate.services.principals import KnownPrincipals, digest_of
from headgate.telemetry import LogLine

log = structlog.get_logger()

MAX_BODY_BYTES = 256 * 1024
LONGEST_MS = 10 * 365 * 86_400_000


class TokenRoutes:
    """`term` is the present leadership; it raises NotNow where another coordinator leads.
    `principals` None: callers need no credential, but tokens can be made before that changes."""

    def __init__(
        self, term: Callable[[], Term], principals: KnownPrincipals | None, machine: Machine
    ) -> None:
        self._term = term
        self._principals = principals
        self._machine = machine

    def table(self) -> list[Route]:
        return [
            Route("GET", "/v1/tokens", self._list),
            Route("POST", "/v1/tokens", self._create),
            Route("DELETE", "/v1/tokens/{name}", self._revoke),
        ]

    async def _list(self, _request: Request) -> Response:
        known = self._term().cluster.tokens
        return json_response(TokenList([_described(known[name]) for name in sorted(known)]))

    async def _create(self, request: Request) -> Response:
        term = self._term()
        wanted = await request.decode(CreateToken, MAX_BODY_BYTES)
        secret = TOKEN_PREFIX + self._machine.token(TOKEN_BYTES)
        now_ms = self._machine.wall_ms()
        token = ApiToken(
            wanted.name,
            digest_of(secret),
            all_parsed(wanted.grants),
            wanted.tenant,
            wanted.limits,
            now_ms,
            _ends_ms(wanted.expires, now_ms),
        )
        await term.apply(lambda _: term.cluster.create_token(token, first=wanted.first))
        self._learn(term)
        log.info(LogLine.TOKEN_CREATED, token=token.name, grants=all_written(token.grants))
        return json_response(CreatedToken(secret, _described(token)), 201)

    async def _revoke(self, request: Request) -> Response:
        term, name = self._term(), request.params["name"]
        await term.apply(lambda _: term.cluster.revoke_token(name))
        self._learn(term)
        log.info(LogLine.TOKEN_REVOKED, token=name)
        return Response(204)

    def _learn(self, term: Term) -> None:
        if self._principals is not None:
            known = term.cluster
            self._principals.learn(tuple(known.tokens.values()), known.tokens_revision)


def _ends_ms(expires: str | None, now_ms: int) -> int:
    if expires is None:
        return 0
    try:
        lasts_ms = parse_duration_ms(expires)
    except InvalidRequest as error:
        raise InvalidRequest(f"expires: {error.message}", parameter="expires") from error
    if not 1_000 <= lasts_ms <= LONGEST_MS:
        raise InvalidRequest("expires is from 1s to 3650d", parameter="expires")
    return now_ms + lasts_ms


def _described(token: ApiToken) -> TokenInfo:
    return TokenInfo(
        token.name,
        all_written(token.grants),
        token.created_ms,
        token.tenant,
        token.expires_ms,
        token.limits,
    )
