"""The values of headgate.model.lanes, under the name that lanes know them by."""

from __future__ import annotations

from headgate.model.lanes import (
    CheckpointPlace,
    LaneReceipt,
    LaneSettings,
    LaneSpec,
    LogStore,
    TransportPlace,
)

__all__ = [
    "CheckpointPlace",
    "LaneReceipt",
    "LaneSettings",
    "LaneSpec",
    "LogStore",
    "TransportPlace",
]
