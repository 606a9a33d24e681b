"""How many may ask for records, and how much their asking may cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headgate.config.sections.section import Section
from headgate.config.units import DurationUnit, seconds
from headgate.config.value_types import Count, Duration, FieldPath


class SubscriptionsSettings(Section):
    soft_delete: FieldPath = ""
    """Field that marks a record as deleted: an update that sets it becomes a delete, one that
    clears it an insert (empty: no field does)."""
    max_per_gateway: Count = 10_000
    """Most subscriptions of one gateway that the coordinator takes."""
    max_per_tenant: Count = 50_000
    """Most subscriptions that name the same tenant."""
    max_total: Count = 1_000_000
    """Most subscriptions in all."""
    max_cost_per_gateway: Annotated[Duration, Field(ge=seconds("10ms"))] = seconds("1s")
    """Most time that the filters of one gateway may take together for one document, at worst."""
    max_cost_per_tenant: Annotated[Duration, Field(ge=seconds("10ms"))] = seconds("1s")
    """The same for the filters of the subscriptions that name the same tenant."""
    ttl: Annotated[float, DurationUnit(), Field(ge=0)] = 0.0
    """Time without a renewal by its gateway after which one ends (0s: with the gateway's lease)."""


class ConsumersSettings(Section):
    shard_size: Count = 100
    """Keys per target partition of a consumer group."""
