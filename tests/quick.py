"""Which tests `make quick` runs: those that start neither Spark nor a server, and take no minutes.

A test starts one if it asks for its fixture, or is given it as a parameter, or if its file imports
what starts one. What computes for long is named here.
"""

from __future__ import annotations

from typing import Any

import pytest

STARTED = frozenset({"etcd", "nats", "postgres", "mongodb", "replica_set", "spark", "system"})
"""Fixtures, and words in the names of parameters."""
STARTING = ("tests.servers.", "tests.system.")
HARMLESS = ("tests.servers.process", "tests.servers.cut")
"""Modules there that start nothing by themselves."""
LONG = (
    "tests/adapters/mongo/",
    "tests/adapters/pgoutput/",
    "tests/bench/",
    "tests/browser/",
    "tests/adapters/etcd/test_stored_elements.py",
    "tests/decide/coordination/test_half_decisions.py",
    "tests/demo/",
    "tests/groups/test_hour.py",
    "tests/lane/test_promise.py",
    "tests/plants/",
    "tests/sim/",
    "tests/spark/",
    "tests/system/",
    "tests/toolchain/",
)
"""They run databases, browsers, benchmarks, the demo, whole clusters, tools on the whole of the
sources, or one property for ten seconds and more."""


def is_quick(item: pytest.Item) -> bool:
    if item.nodeid.startswith(LONG):
        return False
    if STARTED & set(getattr(item, "fixturenames", ())):
        return False
    parameters = item.name.partition("[")[2]
    if any(name in parameters for name in STARTED):
        return False
    return not any(map(_starts_one, vars(getattr(item, "module", None)).values()))


def _starts_one(imported: Any) -> bool:
    origin = getattr(imported, "__module__", None) or getattr(imported, "__name__", "")
    return (
        isinstance(origin, str) and origin.startswith(STARTING) and not origin.startswith(HARMLESS)
    )
