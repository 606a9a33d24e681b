"""How the roles of a cluster show each other that they belong to it, and as what.

All of them share a cluster token, which never leaves a process. What a role shows is a *pass*, made
of the token for one way: who calls, and who is called. So a node that is shown a pass can't be that
role anywhere else, lanes on executors are given what lanes show and nothing more, and a process
that has only a gateway's passes is nobody else.

Two tokens may be valid at a time: passes are made of the first, and taken of both. To change it,
add the new one behind the old one everywhere, then put it in front everywhere, then drop the old.

Invariants: pure; secrets are compared here and nowhere else, in a time that doesn't tell how much
of one is right, nor which; nothing here shows one when it is printed. Without a token nobody shows
anything, and nobody is asked.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Caller = Literal["ingest", "router", "lane", "gateway"]
Called = Literal["coordinator", "ingest", "router", "gateway"]

TOKENS_MAX = 2
TOKEN_CHARS_MIN = 22
"""Of text such as base64 that is 128 bits: fewer could be guessed from a pass that was seen."""
TOKEN_CHARS_MAX = 1_000
PASS_HEADER = "x-headgate-pass"  # noqa: S105 - the name of a header
"""Where requests carry a pass that may carry a client's authorization as well."""

_CALLERS: tuple[Caller, ...] = get_args(Caller)
_TOKEN = re.compile(r"[!-~]+")
_BEARER = "Bearer "


def same_secret(given: str, expected: str) -> bool:
    """Whether they are the same, in a time that doesn't tell how much of it is."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def bearer(secret: str) -> str:
    """An authorization that carries `secret`."""
    return f"{_BEARER}{secret}"


def of_bearer(authorization: str) -> str:
    """What an authorization carries; empty where it carries nothing of the kind."""
    return authorization.removeprefix(_BEARER) if authorization.startswith(_BEARER) else ""


def token_fault(token: str) -> str:
    """Why that is no cluster token, as the end of a sentence that doesn't show it; or empty."""
    if not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        return f"has {len(token)} characters, and needs {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX}"
    return "" if _TOKEN.fullmatch(token) else "may have visible ASCII characters only"


@dataclass(frozen=True, slots=True, repr=False)
class ClusterTokens:
    """Those that are valid; none where nobody is asked for anything."""

    tokens: tuple[str, ...] = ()

    def passes(self, caller: Caller) -> Passes:
        return Passes(self.tokens[0] if self.tokens else "", caller)

    def keeper(self, called: Called) -> PassKeeper:
        return PassKeeper(
            tuple(
                (caller, _pass(token, caller, called))
                for token in self.tokens
                for caller in _CALLERS
            )
        )


@dataclass(frozen=True, slots=True, repr=False)
class Passes:
    """What `caller` shows to others; empty where there is no token to make it of."""

    token: str = ""
    caller: Caller = "gateway"

    def to(self, called: Called) -> str:
        return _pass(self.token, self.caller, called) if self.token else ""

    def headers(self, called: Called) -> tuple[tuple[str, str], ...]:
        """For a request of HTTP."""
        shown = self.to(called)
        return ((PASS_HEADER, shown),) if shown else ()


@dataclass(frozen=True, slots=True, repr=False)
class PassKeeper:
    """Tells callers by the passes they show: pairs of a caller and its secret. Without any it asks
    for no pass."""

    known: tuple[tuple[Caller, str], ...] = ()

    @classmethod
    def of_secret(cls, secret: str, callers: Iterable[Caller]) -> PassKeeper:
        """A keeper that takes a secret as it is; empty: it asks for none."""
        return cls(tuple((caller, secret) for caller in callers) if secret else ())

    @property
    def asks(self) -> bool:
        return bool(self.known)

    def caller(self, shown: str) -> Caller | None:
        """Whose pass that is; None where it is no role's. All are compared, so the time tells
        nothing."""
        found: Caller | None = None
        for caller, secret in self.known:
            if same_secret(shown, secret):
                found = caller
        return found

    def admits(self, shown: str, callers: Iterable[Caller]) -> bool:
        """Whether the caller that shows that is one of `callers`; always where no pass is asked
        for."""
        return not self.asks or self.caller(shown) in tuple(callers)


def _pass(token: str, caller: Caller, called: Called) -> str:
    made_for = f"headgate pass 1: {caller} to {called}"
    return f"{caller}.{hmac.digest(token.encode(), made_for.encode(), 'sha256').hex()}"
