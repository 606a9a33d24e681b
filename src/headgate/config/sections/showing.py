"""What people are shown of records, and the demo."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headgate.config.sections.section import Section
from headgate.config.units import seconds
from headgate.config.value_types import Count, DemoControl, Duration, FieldPaths


class UiSettings(Section):
    mask: FieldPaths = ""
    """Fields whose values people aren't shown who look at records (empty: none); a list on the way
    stands for each of its elements, and _key is a record's key."""


class EvidenceSettings(Section):
    size: Annotated[int, Field(ge=0, le=1_000_000)] = 20_000
    """What each lane process and each gateway remembers of deliveries, for `headgate explain`:
    records, and for each the subscriptions it was for (0: nothing)."""
    age: Annotated[Duration, Field(ge=seconds("1s"), le=seconds("1d"))] = seconds("10m")
    """How long it is remembered, at most."""


class DemoSettings(Section):
    count: Count = 50
    """Messages per second and partition."""
    partitions: Annotated[int, Field(ge=1, le=1_024)] = 4
    """Partitions of the demo's topic."""
    aircraft: Count = 400
    """Aircraft that report their position."""
    window: Annotated[Duration, Field(ge=seconds("1s"))] = seconds("10s")
    """The router's window in the demo, short enough to show several."""
    control: DemoControl = ""
    """Where the demo that runs this system takes what its page asks for (empty: no demo does, and
    there is no such page); `headgate demo` sets it."""
