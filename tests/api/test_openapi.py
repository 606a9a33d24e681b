"""The published description and the servers agree, whatever is sent: schemathesis against both."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from headgate.decide.http.openapi import openapi
from headgate.model.http import encode_json
from tests.api.serving import in_thread, ingest, public, routes_of_gateway, routes_of_ingest

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]

# The same cases in every run: a test that fails only now and then helps nobody.
REPEATABLE = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


# --- an ingest node ------------------------------------------------------------------------------

of_ingest = schemathesis.openapi.from_dict(openapi(routes_of_ingest(), title="ingest", version="1"))


@pytest.fixture(scope="module")
def ingest_url() -> Iterator[str]:
    with in_thread(ingest) as url:
        yield url


@of_ingest.parametrize()
@REPEATABLE
def test_an_ingest_node_answers_as_described(case: schemathesis.Case[Any], ingest_url: str) -> None:
    if "name" in case.path_parameters:
        # A name made up at random is unknown, which would be all that is ever tested.
        case.path_parameters["name"] = ("flights", "jobs")[len(str(case.body)) % 2]
    case.call_and_validate(base_url=ingest_url, checks=CHECKS)


# --- the public address --------------------------------------------------------------------------


PUBLIC = json.loads(
    encode_json(openapi(routes_of_gateway(), title="Headgate", version=version("headgate")))
)
# A stream has no end to wait for, and nothing adopts subscriptions here.
FINITE = {path: item for path, item in PUBLIC["paths"].items() if path != "/v1/subscribe"}

of_public = schemathesis.openapi.from_dict({**PUBLIC, "paths": FINITE})


@pytest.fixture(scope="module")
def public_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with in_thread(public(tmp_path_factory.mktemp("public") / "data")) as url:
        yield url


def test_the_description_is_served(public_url: str) -> None:
    with urllib.request.urlopen(f"{public_url}/openapi.json") as answer:
        assert json.load(answer) == PUBLIC


@of_public.parametrize()
@REPEATABLE
def test_the_public_address_answers_as_described(
    case: schemathesis.Case[Any], public_url: str
) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("version"), int | float):
        # Whoever routes has seen the topic: its news is waited for, and then "try again" is right.
        del case.body["version"]
    case.call_and_validate(base_url=public_url, checks=CHECKS)
