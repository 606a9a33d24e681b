"""Addresses and settings as anybody may see them: without what lets somebody in.

Every address that is written into a log, an error or an answer passes through here. Invariants:
pure; a password is hidden whole, whatever it is made of, and rather too much is hidden than too
little.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_PASSWORDS = (
    # postgresql://user:PASSWORD@host, up to the last @: a password may hold one.
    re.compile(r"(?<=://)(?P<before>[^:/@]*:).*(?P<after>@)"),
    # password=PASSWORD, in quotes or not, in a list of settings or in an address's query.
    re.compile(
        r"(?P<before>(?i:(?:password|secret|token)\s*=\s*|aws_session_token:))"
        r"(?:'(?:[^'\\]|\\.)*'?|[^\s&]+)(?P<after>)"
    ),
)
_LONE = re.compile(r"(?<=://)[^:/@\s,]+(?=@)")
"""nats://TOKEN@host"""


def without_passwords(text: str) -> str:
    """A name without a password is shown."""
    for password in _PASSWORDS:
        text = password.sub(rf"\g<before>{HIDDEN}\g<after>", text)
    return text


def without_credentials(text: str) -> str:
    """The same where a name without a password is a token itself."""
    return _LONE.sub(HIDDEN, without_passwords(text))
