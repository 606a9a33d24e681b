"""One line of the audit trail: which principal did what, from which address, and with which
outcome.

Invariant: nothing of a body, a document or a credential is part of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Outcome = Literal["done", "refused", "failed"]


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """`what` is a route, or a way between roles; `on` what its path names. `kind` is that of the
    principal. `status` and `code` are those of the answer."""

    who: str
    what: str
    outcome: Outcome
    kind: str = ""
    on: Mapping[str, str] = {}
    from_: str = msgspec.field(default="", name="from")
    status: int = 0
    code: str = ""
