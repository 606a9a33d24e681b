"""What of a request goes into the audit trail.

Every administrative act, also one that fails: all that needs a grant to write. And every refusal.
Invariant: pure, and what it takes of a request is cut, and printable: nobody writes
a second line, or to somebody's terminal, through the trail.
"""

from __future__ import annotations

import msgspec

from headgate.decide.access.needs import need_of
from headgate.errors import HeadgateError
from headgate.model.access import Principal
from headgate.model.api import ErrorAnswer
from headgate.model.audit import AuditLine, Outcome
from headgate.model.http import Answer, Request, Response, Route

ERRORS_FROM = 400
REFUSED = (401, 403, 429)
TEXT_CHARS = 200
NOBODY = "nobody"

_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


def line_of(request: Request, route: Route | None, answer: Answer) -> AuditLine | None:
    """The line of that answer; None for what isn't written down. `route` None: there is none, or
    the caller wasn't let that far."""
    is_refused = answer.status in REFUSED
    if not is_refused and (route is None or not _is_act(route)):
        return None
    principal = request.principal
    path = route.path if route is not None else request.path
    code, refused = _error(answer)
    return AuditLine(
        who=cleaned(refused if principal is None else principal.name),
        what=cleaned(f"{request.method} {path}"),
        outcome=_outcome(answer.status),
        kind=principal.kind if principal is not None else "",
        on={name: cleaned(value) for name, value in request.params.items()},
        from_=cleaned(request.peer),
        status=answer.status,
        code=code,
    )


def _is_act(route: Route) -> bool:
    need = need_of(route.method, route.path)
    return need is not None and need.action == "write"


def refusal_line(
    what: str, error: HeadgateError, principal: Principal | None = None, address: str = ""
) -> AuditLine | None:
    """The line of a refusal of what isn't an HTTP request, such as a message; None for other
    errors. `address` is where the caller comes from, as far as that is known."""
    if error.status not in REFUSED:
        return None
    named = str(error.details.get("principal", NOBODY))
    return AuditLine(
        who=cleaned(named if principal is None else principal.name),
        what=cleaned(what),
        outcome="refused",
        kind="" if principal is None else principal.kind,
        from_=cleaned(address),
        status=error.status,
        code=error.code,
    )


def role_line(what: str, error: HeadgateError, *, role: str = "", address: str = "") -> AuditLine:
    """The line of a caller that is turned away on a way between roles; `role` is the one whose pass
    it has shown, if any."""
    return AuditLine(
        who=cleaned(f"a {role}") if role else NOBODY,
        what=what,
        outcome="refused",
        kind="role" if role else "",
        from_=cleaned(address),
        status=error.status,
        code=error.code,
    )


def cleaned(text: str) -> str:
    """What of `text` may stand in a line: short, and without anything that a terminal obeys."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:TEXT_CHARS])


def _outcome(status: int) -> Outcome:
    if status in REFUSED:
        return "refused"
    return "done" if status < ERRORS_FROM else "failed"


def _error(answer: Answer) -> tuple[str, str]:
    """The error's code, and the name of the caller it was said to, as far as they are known."""
    if answer.status < ERRORS_FROM or not isinstance(answer, Response):
        return "", NOBODY
    try:
        error = _decode_error(answer.body).error
    except (ValueError, RecursionError):
        return "", NOBODY
    return cleaned(error.code), str(error.details.get("principal", NOBODY))
