"""Who is who, for one role: the tokens that the coordinator has told it, and JWTs.

Implements ports.access.Principals and ports.access.Gate. Invariants: a token that the coordinator
has revoked counts no more from the moment this role hears of it, one that expires no more from then
on; while the coordinator is away, what was known goes on; no credential is kept, only its digest.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from headgate import errors
from headgate.decide.access import deciding, sessions
from headgate.decide.access.claims import ClaimRules, of_administrator, of_claims, of_token
from headgate.decide.access.needs import INTERNAL, need_of
from headgate.decide.links.passes import PASS_HEADER, PassKeeper
from headgate.model.access import NOBODY, ApiToken, Grant, Need, Principal
from headgate.model.http import Answer, Request, Response, Route, json_response
from headgate.ports.access import SignedClaims
from headgate.ports.machine import Machine

AUTHORIZATION = "authorization"
BEARER = "bearer "
CREDENTIAL_CHARS = 8_192
"""No principal has a longer one."""
JWTS_MAX = 10_000
"""So many verified ones are remembered."""
TICKETS_MAX, TICKETS_EACH_MAX = 10_000, 1_000
"""That may wait to be used; a principal that asks for more loses its own oldest ones."""
TAKES_TICKETS = ("GET", "/v1/subscribe")
"""Only what an EventSource calls, which can send no header."""
TICKET_MS = 15_000
TICKET_BYTES = 24
ROLES: Mapping[str, Principal] = {
    # A node that hands on has let its producer in already.
    "ingest": Principal("an ingest node", "role", (Grant("produce"),), role="ingest"),
    "router": Principal("a router", "role", (Grant("read", "nodes"),), role="router"),
}
"""What the roles of the cluster may do at each other's public routes."""


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """`admin_digest` is the SHA-256 of the configuration's administrator token (empty: none);
    `leeway_ms` is how far the clock of the signer of JWTs may be from ours."""

    admin_digest: str = ""
    claims: ClaimRules = field(default_factory=ClaimRules)
    leeway_ms: int = 0


class KnownPrincipals:
    """`jwt` None: none are taken. `keeper` knows what other roles have to show."""

    def __init__(
        self,
        options: AccessOptions,
        machine: Machine,
        jwt: SignedClaims | None = None,
        keeper: PassKeeper | None = None,
    ) -> None:
        self._keeper = keeper or PassKeeper()
        self._options = options
        self._machine = machine
        self._jwt = jwt
        self._tokens: dict[str, Principal] | None = None
        """By digest; None until the coordinator has said which there are."""
        self._told: tuple[tuple[ApiToken, ...], int] = ((), 0)
        self._verified: OrderedDict[str, Principal] = OrderedDict()
        self._tickets: OrderedDict[str, tuple[Principal, int]] = OrderedDict()
        self._tickets_of: dict[str, OrderedDict[str, None]] = {}
        """The same, the oldest first, by the credential of the principal that asked for them."""
        self._local_digest = ""
        self._unknown = _not_heard

    # --- what is known ---------------------------------------------------------------------------

    @property
    def told(self) -> tuple[tuple[ApiToken, ...], int]:
        """The tokens that the coordinator has told, and as of which revision."""
        return self._told

    def learn(self, tokens: tuple[ApiToken, ...], revision: int) -> None:
        """All tokens that there are; an older revision changes nothing."""
        if self._tokens is not None and revision < self._told[1]:
            return
        self._told = tokens, revision
        self._tokens = {token.digest: of_token(token) for token in tokens}

    def forget(self, why: Callable[[], errors.NotNow]) -> None:
        """Another process knows the tokens, and doesn't tell them to this role: `why` says
        which."""
        self._tokens, self._unknown = None, why

    async def close(self) -> None:
        """Nobody new is looked for any more."""
        if self._jwt is not None:
            await self._jwt.close()

    def trust_locally(self, secret: str) -> None:
        """The holder of `secret` is an administrator: it is only known on this machine."""
        self._local_digest = digest_of(secret)

    # --- who a caller is -------------------------------------------------------------------------

    async def principal_of(self, credential: str) -> Principal:
        if not credential or len(credential) > CREDENTIAL_CHARS:
            raise _unknown()
        digest = digest_of(credential)
        found = self._administrator(digest) or self._verified.get(digest)
        if found is None and self._jwt is not None and self._jwt.recognises(credential):
            claims = await self._jwt.verified(credential)
            options = self._options
            found = of_claims(claims, options.claims, digest=digest, leeway_ms=options.leeway_ms)
            self._remember(digest, found)
        if found is None:
            if self._tokens is None:
                raise self._unknown()
            found = self._tokens.get(digest)
        if found is None:
            raise _unknown()
        if (reason := self.ended(found)) is not None:
            raise reason
        return found

    def _administrator(self, digest: str) -> Principal | None:
        for known in (self._options.admin_digest, self._local_digest):
            if known and hmac.compare_digest(known, digest):
                return of_administrator(digest)
        return None

    def _remember(self, digest: str, principal: Principal) -> None:
        self._verified[digest] = principal
        while len(self._verified) > JWTS_MAX:
            self._verified.popitem(last=False)

    def ended(self, principal: Principal) -> errors.Unauthorized | None:
        if principal.expires_ms and principal.expires_ms <= self._machine.wall_ms():
            self._verified.pop(principal.credential, None)
            return errors.Unauthorized(
                f"the token of {principal.name} has expired; come with a new one", reason="expired"
            )
        if principal.kind != "token" or self._tokens is None:
            return None
        if self._administrator(principal.credential) is not None:
            return None
        if self._tokens.get(principal.credential) != principal:
            return errors.Unauthorized(
                f"the token of {principal.name} was revoked; ask an administrator for a new one",
                reason="revoked",
            )
        return None

    # --- tickets ---------------------------------------------------------------------------------

    def ticket_for(self, principal: Principal) -> tuple[str, int]:
        """One that is good for once, here, for that many milliseconds."""
        ticket = self._machine.token(TICKET_BYTES)
        digest, now_ms = digest_of(ticket), self._machine.wall_ms()
        own = self._tickets_of.setdefault(principal.credential, OrderedDict())
        self._tickets[digest] = principal, now_ms + TICKET_MS
        own[digest] = None
        if len(own) > TICKETS_EACH_MAX:
            self._take_ticket(next(iter(own)))
        while len(self._tickets) > TICKETS_MAX:
            self._take_ticket(next(iter(self._tickets)))
        return ticket, TICKET_MS

    def _take_ticket(self, digest: str) -> tuple[Principal, int] | None:
        found = self._tickets.pop(digest, None)
        if found is not None:
            own = self._tickets_of[found[0].credential]
            del own[digest]
            if not own:
                del self._tickets_of[found[0].credential]
        return found

    async def spend_ticket(self, ticket: str) -> Principal:
        found = self._take_ticket(digest_of(ticket))
        if found is None or found[1] <= self._machine.wall_ms():
            raise errors.Unauthorized(
                "the ticket is unknown, used or too old: ask POST /v1/tickets for a new one, at "
                "the gateway that you then subscribe at"
            )
        principal = found[0]
        if (reason := self.ended(principal)) is not None:
            raise reason
        return principal

    # --- the gate --------------------------------------------------------------------------------

    async def admit(self, route: Route, request: Request) -> Request:
        need = need_of(route.method, route.path)
        if need is None and route.path.startswith(INTERNAL):
            return request  # the role that serves it asks for its own token
        principal = await self._who(route, request, need)
        if need is None:
            raise deciding.refusal(principal, "write", "settings")
        if not need.open:
            _check(need, principal, request)
        return msgspec.structs.replace(request, principal=principal)

    async def _who(self, route: Route, request: Request, need: Need | None) -> Principal:
        said = request.headers.get(AUTHORIZATION)
        is_open = need is not None and need.open
        if credential := _credential(request, said, is_open=is_open):
            try:
                return await self.principal_of(credential)
            except errors.HeadgateError:
                if is_open:
                    return NOBODY  # a wrong credential does no harm: the route is for everybody
                raise
        if said and not is_open:
            raise _unknown()
        if (route.method, route.path) == TAKES_TICKETS and "ticket" in request.query:
            return await self.spend_ticket(request.query["ticket"])
        return self._role_of(request)

    def _role_of(self, request: Request) -> Principal:
        """Another role that asks for itself: what it passes on for a client comes with who that
        is, and a gateway asks for nothing else."""
        caller = self._keeper.caller(request.headers.get(PASS_HEADER))
        return NOBODY if caller is None else ROLES.get(caller, NOBODY)

    def error_for(self, request: Request, error: errors.UnknownTopic) -> errors.UnknownTopic:
        who = request.principal
        if who is None or (
            deciding.may(who, "read", "topics", topic="*") and not any(g.deny for g in who.grants)
        ):
            return error
        named = str(error.details.get("topic", ""))
        return errors.UnknownTopic(f"there is no topic {named}", topic=named)

    def shown(self, route: Route, request: Request, answer: Answer) -> Answer:
        need = need_of(route.method, route.path)
        if need is None or not need.status_only or not isinstance(answer, Response):
            return answer
        if deciding.may(request.principal, "read", "nodes"):
            return answer
        status = msgspec.json.decode(answer.body, type=dict[str, object]).get("status", "")
        return json_response({"status": status}, answer.status)


def identifying(request: Request) -> list[tuple[str, str]]:
    """The headers of a request that tell its principal, to ask another role on its behalf."""
    # What is asked on behalf of a page was judged here: it is that page's own doing.
    page = [(sessions.PAGE_HEADER, "1")]
    named = [(name, request.headers.get(name)) for name in (AUTHORIZATION, "cookie")]
    return [one for one in named if one[1]] + page


def _credential(request: Request, said: str, *, is_open: bool) -> str:
    """What a program says, or the cookie of a page's log-in; empty: nothing."""
    if said:
        return said[len(BEARER) :].strip() if said[: len(BEARER)].lower() == BEARER else ""
    token = sessions.token_in(request.headers.get("cookie"))
    if token and not is_open:
        sessions.check_page(request.method, request.headers.get(sessions.PAGE_HEADER))
    return token


def _check(need: Need, principal: Principal, request: Request) -> None:
    if need.roles:
        if principal.role not in need.roles:
            raise deciding.refusal(principal, "write", "nodes")
        return
    assert need.action is not None, "a need that isn't open says what it is"
    topic = request.params.get("name") if need.scope == "named" else None
    deciding.check(principal, need.action, need.area, topic=topic)


def _not_heard() -> errors.NotNow:
    return errors.NotNow(
        "this node has not heard from the coordinator yet which tokens there are; try again"
    )


def digest_of(credential: str) -> str:
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()


def _unknown() -> errors.Unauthorized:
    return errors.Unauthorized(
        "the token is unknown, wrong or not valid any more; send Authorization: Bearer TOKEN with "
        "one that is"
    )
