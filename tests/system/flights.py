"""Documents to send through the system, and what plain Python says of them."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Document = dict[str, Any]

LOW = ("altitude < 3000", lambda d: d["altitude"] < 3_000)
EMERGENCY = (
    'squawk in ["7500", "7600", "7700"] || callsign.startsWith("HG1")',
    lambda d: d["squawk"] in ("7500", "7600", "7700") or d["callsign"].startswith("HG1"),
)


def flights(count: int, *, seed: int, aircraft: int = 200) -> list[Document]:
    """`number` grows per aircraft, so that order per key can be checked."""
    rng = random.Random(seed)
    numbers: dict[str, int] = defaultdict(int)
    documents = []
    for _ in range(count):
        icao = f"{rng.randrange(aircraft):06x}"
        numbers[icao] += 1
        documents.append(
            {
                "icao": icao,
                "number": numbers[icao],
                "altitude": rng.randrange(0, 12_000),
                "squawk": rng.choice(["1200", "2000", "7500", "7600", "7700"]),
                "callsign": f"HG{rng.randrange(1, 100)}",
            }
        )
    return documents


def selected(documents: Iterable[Document], keep: Callable[[Document], bool]) -> list[Document]:
    return [document for document in documents if keep(document)]


def check_exact(lines: Iterable[str], expected: Iterable[Document]) -> None:
    """The printed events are exactly `expected`, each key in order, each position once."""
    events: list[Mapping[str, Any]] = [json.loads(line) for line in lines]
    positions = [(event["partition"], event["seq"]) for event in events]
    assert len(set(positions)) == len(positions), "an event was printed twice"
    got: dict[str, list[Document]] = defaultdict(list)
    wanted: dict[str, list[Document]] = defaultdict(list)
    for event in events:
        assert event["key"] == event["document"]["icao"]
        got[event["key"]].append(event["document"])
    for document in expected:
        wanted[document["icao"]].append(document)
    assert got == wanted
