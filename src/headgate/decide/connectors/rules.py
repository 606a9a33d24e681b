"""Which connectors may be created, and where one may begin.

Invariant: nothing that passes here holds a secret: where one belongs there is a reference to it,
`${NAME}` or `${file:PATH}`, which the ingest node that reads resolves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import get_args

from headgate.decide.connectors import mongo_settings, postgres_settings
from headgate.decide.connectors.snapshots.pace import rows_per_s
from headgate.decide.connectors.snapshots.places import of_stream
from headgate.errors import HeadgateError, InvalidRequest
from headgate.model.api import NAME_PATTERN, NAME_RULE
from headgate.model.connector import BEGIN_NOW, Connector, ConnectorRoute, ConnectorType
from headgate.model.connectors_api import CreateConnector

TYPES: tuple[str, ...] = get_args(ConnectorType)
CONNECTORS_MAX = 1_000
ROUTES_MAX = 100
SETTINGS_MAX = 50
COLLECTIONS_MAX = 100
"""Named for one snapshot."""
CHARS_MAX = 4_096
"""Of a setting, a pattern or a position."""
SECRETIVE = ("password", "passwd", "secret", "token")
"""A setting with one of these in its name holds a secret."""
HOW = "write ${NAME} for a variable in the environment of the ingest nodes, or ${file:PATH}"

_REFERENCE = re.compile(r"\$\{[^{}]+\}")
_ALMOST_A_TIME = re.compile(r"\d{4}-\d\d?-\d\d?")
_POSITION = re.compile(r"(?=.*[0-9])[\x21-\x7e]{8,4096}")
_BEGINNINGS = "now, a time such as 2026-11-18T12:00:00Z, or a position such as a record's source"

SettingsCheck = Callable[[Mapping[str, str]], object]
"""Raises InvalidRequest for settings that can't be those of a type."""

SETTINGS_CHECKS: Mapping[ConnectorType, SettingsCheck] = {
    "mongodb": mongo_settings.check_settings,
    "postgresql": postgres_settings.check_settings,
}
"""What is known of the settings of each type."""


def connector_type(text: str) -> ConnectorType:
    """Raises InvalidRequest for what is none."""
    kind: ConnectorType
    for kind in get_args(ConnectorType):
        if kind == text:
            return kind
    raise InvalidRequest(
        f"there is no connector type {text[:100]!r}: use {', '.join(TYPES)}", type=text[:100]
    )


def made(body: CreateConnector, *, wall_ms: int) -> Connector:
    """The connector that a request asks for; raises InvalidRequest for what can't be read as
    one."""
    return Connector(
        body.name,
        connector_type(body.type),
        tuple(ConnectorRoute(route.pattern, route.topic) for route in body.routes),
        body.settings,
        begin_at=begin_at(body.begin_at, wall_ms=wall_ms),
    )


def refusal(connector: Connector) -> HeadgateError | None:
    """Why there can't be such a connector, on any system; None when there can."""
    name = connector.name
    if not re.fullmatch(NAME_PATTERN, name):
        return InvalidRequest(
            f"connector name {name[:200]!r} is not allowed: use {NAME_RULE}", name=name[:200]
        )
    return _routes_refusal(connector.routes) or settings_refusal(connector.type, connector.settings)


def settings_refusal(kind: str, settings: Mapping[str, str]) -> HeadgateError | None:
    """Why nobody can connect by these."""
    try:
        _check_settings(connector_type(kind), settings)
    except InvalidRequest as error:
        return error
    return None


def _check_settings(kind: ConnectorType, settings: Mapping[str, str]) -> None:
    too_long = any(len(key) > CHARS_MAX or len(one) > CHARS_MAX for key, one in settings.items())
    if len(settings) > SETTINGS_MAX or too_long:
        raise InvalidRequest(
            f"a connector has up to {SETTINGS_MAX} settings of up to {CHARS_MAX} characters each"
        )
    if shown := _shown_secret(settings):
        raise InvalidRequest(shown)
    rows_per_s(settings)
    SETTINGS_CHECKS[kind](settings)


def _routes_refusal(routes: tuple[ConnectorRoute, ...]) -> HeadgateError | None:
    if not 1 <= len(routes) <= ROUTES_MAX:
        return InvalidRequest(
            f"a connector has 1 to {ROUTES_MAX} routes, not {len(routes)}: say which topic gets "
            "the changes"
        )
    for route in routes:
        if not 1 <= len(route.pattern) <= CHARS_MAX:
            return InvalidRequest(
                f"a route to {route.topic[:200]} needs a pattern of 1 to {CHARS_MAX} characters; "
                "* is for all collections"
            )
    return None


def collections_refusal(collections: Sequence[str]) -> HeadgateError | None:
    """Why no snapshot can be taken of these, wherever they are."""
    if len(collections) > COLLECTIONS_MAX:
        return InvalidRequest(f"name up to {COLLECTIONS_MAX} collections, or none for all of them")
    if wrong := [one for one in collections if not 1 <= len(one) <= CHARS_MAX]:
        return InvalidRequest(
            f"{wrong[0][:100]!r} is no collection: a name has 1 to {CHARS_MAX} characters"
        )
    return None


def _shown_secret(settings: Mapping[str, str]) -> str:
    """What to do about a secret that stands where everybody can read it; empty: there is none."""
    for key, value in settings.items():
        if _is_secretive(key) and not _is_reference(value):
            return f"setting {key[:100]} would be shown to everybody: {HOW}"
        # The slashes and colons of a reference are not the address's. A character stands for it
        # that can't be in the address.
        mark = next(char for char in map(chr, range(CHARS_MAX + 1)) if char not in value)
        plain = _REFERENCE.sub(mark, value)
        _, scheme, rest = plain.partition("://")
        if not scheme:
            continue
        credentials, at, _ = rest.rpartition("@")
        _, colon, password = credentials.partition(":")
        if at and colon and password != mark:
            return (
                f"the password in {key[:100]} would be shown to everybody: {HOW}, and %40 for an "
                "@ elsewhere"
            )
        for name, one in re.findall(r"[?&;]([^=&;]+)=([^&;]*)", rest):
            if _is_secretive(name) and one != mark:
                return f"{name[:100]} in {key[:100]} would be shown to everybody: {HOW}"
    return ""


def _is_secretive(name: str) -> bool:
    return any(word in name.lower() for word in SECRETIVE)


def _is_reference(value: str) -> bool:
    return _REFERENCE.fullmatch(value) is not None


def begin_at(text: str, *, wall_ms: int) -> str:
    """Where a connector begins (`Connector.begin_at`), as the request writes it; raises
    InvalidRequest.

    `now`, an instant with its zone, or a position; both may say what they are (`time:`,
    `position:`). What looks like a time and is none, and what looks like nothing, is refused.
    """
    kind, _, rest = text.partition(":")
    if text == BEGIN_NOW:
        return text
    if kind == "position" and re.fullmatch(r"[\x21-\x7e]{1,4096}", rest):
        return f"position:{of_stream(rest)}"
    if kind == "time":
        return _instant(rest, wall_ms)
    if _ALMOST_A_TIME.match(text):
        return _instant(text, wall_ms)
    if kind != "position" and _POSITION.fullmatch(text):
        return f"position:{of_stream(text)}"
    raise InvalidRequest(f"nobody can begin at {text[:100]!r}: say {_BEGINNINGS}")


def _instant(text: str, wall_ms: int) -> str:
    try:
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is None:
            raise InvalidRequest(
                f"{text[:100]} is a time in which zone? Write {text[:100]}Z for UTC"
                if "T" in text
                else f"{text[:100]} is a day: say {_BEGINNINGS}"
            )
        instant = instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{text[:100]!r} is no time: say {_BEGINNINGS}") from None
    if instant.timestamp() * 1_000 > wall_ms:
        raise InvalidRequest(f"{text[:100]} is in the future; say now, or an earlier time")
    return f"time:{instant.isoformat().replace('+00:00', 'Z')}"
