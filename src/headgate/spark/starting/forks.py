"""Spark's own daemon, from which Python workers are forked."""

from __future__ import annotations

import pyspark.worker  # noqa: F401  # what every worker runs, loaded once
from pyspark.daemon import manager


def serve_forks() -> None:
    """Returns when Spark closes standard input."""
    manager()
