"""The tokens of a cluster, as a setting names them: by value, by a variable, or by a file.

Invariant: no token is part of an error. A file and a variable are read where the role starts, once.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.config.secrets import FILE, find_secret
from headgate.decide.links.passes import TOKENS_MAX, ClusterTokens, token_fault
from headgate.errors import InvalidConfig

KEY = "security.cluster.tokens"
ENVIRONMENT = "env:"


def references_of(text: str) -> list[str]:
    """With commas in between."""
    return [one.strip() for one in text.split(",")] if text.strip() else []


def references_fault(text: str) -> str | None:
    """What is wrong with a setting, as far as that shows without a look at variables and files."""
    references = references_of(text)
    if len(references) > TOKENS_MAX:
        return "too many"
    named = [one for one in references if one.startswith((FILE, ENVIRONMENT))]
    if not all(one.partition(":")[2] for one in named):
        return "a name is missing"
    return next(
        (fault for one in references if one not in named if (fault := token_fault(one))), None
    )


def find_cluster_tokens(text: str, *, environ: Mapping[str, str] | None = None) -> ClusterTokens:
    """Those that the setting names. Raises InvalidConfig where one can't be read, or is none."""
    return ClusterTokens(tuple(_found(one, environ) for one in references_of(text)))


def _found(reference: str, environ: Mapping[str, str] | None) -> str:
    if not reference.startswith((FILE, ENVIRONMENT)):
        return reference
    token = find_secret(reference.removeprefix(ENVIRONMENT), environ=environ).strip()
    if fault := token_fault(token):
        raise InvalidConfig(f"{KEY}: what {reference} holds {fault}", key=KEY)
    return token
