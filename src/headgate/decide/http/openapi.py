"""The OpenAPI 3.1 description of a route table, from the same types that parse the requests.

Invariant: generated, never written by hand; a route that isn't public is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from headgate.model.api import NAME_PATTERN, ErrorAnswer
from headgate.model.http import JSON, Route

NAME_SCHEMA = {"type": "string", "pattern": NAME_PATTERN}
"""What stands in a path is the name of something."""

REF_TEMPLATE = "#/components/schemas/{name}"


def openapi(routes: Iterable[Route], *, title: str, version: str) -> dict[str, Any]:
    """The document, ready to be encoded as JSON."""
    public = [route for route in routes if route.public]
    types = _types(public)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in public:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(routes: Iterable[Route]) -> list[Any]:
    """Every type a route names, once, in order of appearance."""
    seen: dict[int, Any] = {id(ErrorAnswer): ErrorAnswer}
    for route in routes:
        for kind in (route.request, route.response):
            if kind is not None:
                seen.setdefault(id(kind), kind)
    return list(seen.values())


def _operation(route: Route, schema_of: dict[int, Any]) -> dict[str, Any]:
    content = {
        route.response_content_type: {"schema": schema_of[id(route.response)]}
        if route.response is not None
        else {}
    }
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": _parameters(route),
        "responses": {
            str(route.status): {"description": "Success.", "content": content},
            "4XX": _error("The caller must change the request.", schema_of),
            "5XX": _error("Not now, or a fault of the server.", schema_of),
        },
    }
    if route.also_status is not None:
        operation["responses"][str(route.also_status)] = {"description": "", "content": content}
    if route.request is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": schema_of[id(route.request)]}},
        }
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": NAME_SCHEMA}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    in_query = [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.required,
            "description": parameter.description,
            "schema": {"type": "string"},
        }
        for parameter in route.parameters
    ]
    return in_path + in_query


def _error(description: str, schema_of: dict[int, Any]) -> dict[str, Any]:
    return {
        "description": description,
        "content": {JSON: {"schema": schema_of[id(ErrorAnswer)]}},
    }


def _operation_id(route: Route) -> str:
    words = re.findall(r"[A-Za-z0-9]+", route.path.removeprefix("/v1"))
    return "_".join([route.method.lower(), *words])
