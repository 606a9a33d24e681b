"""The connectors that a command asks for, from options and from YAML files.

Invariant: pure but for the file that is read; what is missing or contradicts itself is refused with
a sentence that names it, before anything is sent anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from headgate.errors import InvalidRequest
from headgate.model.connector import BEGIN_NOW
from headgate.model.connectors_api import CreateConnector, RouteInfo

EVERYTHING = "*"
WITHOUT_TOPIC = "say which topic gets the changes: --topic TOPIC, or --route PATTERN=TOPIC"


class Written(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"begins": "from"}
):
    """A connector as a file has it: `routes` leads from patterns to topics, `topic` gets the rest;
    `uri`, `dsn`, `database`, `collection` and `tables` are settings like the others."""

    name: str
    type: str = "mongodb"
    uri: str = ""
    dsn: str = ""
    database: str = ""
    collection: str = ""
    tables: list[str] = []
    settings: dict[str, str | int | float | bool] = {}
    routes: dict[str, str] = {}
    topic: str = ""
    begins: str = BEGIN_NOW
    snapshot: bool = False

    def wanted(self) -> CreateConnector:
        plain = {
            "uri": self.uri,
            "dsn": self.dsn,
            "database": self.database,
            "collection": self.collection,
            "tables": ",".join(self.tables),
        }
        settings = {key: _text(value) for key, value in self.settings.items()}
        settings |= {key: value for key, value in plain.items() if value}
        routes = routed(self.routes.items(), self.topic)
        if not routes:
            raise InvalidRequest(
                f"connector {self.name} leads nowhere: give it a topic, or routes from patterns to "
                "topics"
            )
        return CreateConnector(self.name, self.type, settings, routes, self.begins, self.snapshot)


def from_options(
    name: str,
    kind: str,
    *,
    uri: str,
    dsn: str = "",
    database: str,
    collection: str,
    tables: Iterable[str] = (),
    topic: str,
    routes: Iterable[str],
    settings: Iterable[str],
    begins: str,
    snapshot: bool = False,
) -> CreateConnector:
    if not (dsn if kind == "postgresql" else uri):
        option = "--dsn DSN" if kind == "postgresql" else "--uri URI"
        raise InvalidRequest(f"say where the database is: {option}, or --file FILE with all of it")
    if not topic and not list(routes):
        raise InvalidRequest(WITHOUT_TOPIC)
    return Written(
        name=name,
        type=kind,
        uri=uri,
        dsn=dsn,
        database=database,
        collection=collection,
        tables=list(tables),
        settings=dict(_pair(text, "--set", "KEY=VALUE") for text in settings),
        routes=dict(_pair(text, "--route", "PATTERN=TOPIC") for text in routes),
        topic=topic,
        begins=begins,
        snapshot=snapshot,
    ).wanted()


def from_file(path: Path) -> list[CreateConnector]:
    """All that a file names: one connector, a list of them, or such a list under `connectors`."""
    from headgate.config.sources import yaml_of

    content = yaml_of(path)
    if isinstance(content, Mapping) and set(content) == {"connectors"}:
        content = content["connectors"]
    many = content if isinstance(content, list) else [content]
    found = [_written(path, one) for one in many if one is not None]
    if not found:
        raise InvalidRequest(f"{path} names no connectors")
    return [one.wanted() for one in found]


def routed(routes: Iterable[tuple[str, str]], topic: str) -> list[RouteInfo]:
    """In the order in which they are asked; what fits none goes to `topic`, if there is one."""
    found = [RouteInfo(to, pattern) for pattern, to in routes]
    return [*found, RouteInfo(topic, EVERYTHING)] if topic else found


def _written(path: Path, content: Any) -> Written:
    if isinstance(content, Mapping):  # YAML reads a time as one
        times = {k: v.isoformat() for k, v in content.items() if isinstance(v, datetime)}
        content = {**content, **times}
    try:
        return msgspec.convert(content, Written)
    except msgspec.ValidationError as error:
        name = content.get("name") if isinstance(content, Mapping) else None
        which = f"connector {name} in {path}" if isinstance(name, str) else f"a connector in {path}"
        raise InvalidRequest(f"{which} isn't one: {error}") from error


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise InvalidRequest(f"{option} {text!r} has not the form {form}")
    return key, value


def _text(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
