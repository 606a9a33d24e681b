"""The machine and the versions that a benchmark ran with: what a reader needs to compare.

Never names the host, the user or a path.
"""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import psutil

from headgate.config import inherited_environment
from headgate.spark.starting.java import find_java

CPU_INFO = Path("/proc/cpuinfo")


def machine() -> dict[str, str | int | float]:
    return {
        "cores": psutil.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "cpu": cpu_model(CPU_INFO),
        "system": f"{platform.system()} {platform.machine()}",
        # What else ran while it was measured: above the cores, figures say little.
        "load_1m": round(psutil.getloadavg()[0], 2),
        "headgate": version("headgate"),
        "python": platform.python_version(),
    }


def spark() -> dict[str, str | int | float]:
    """For benchmarks that start Spark; the others need no Java."""
    return {
        "pyspark": version("pyspark"),
        "java": find_java(inherited_environment()).version,
    }


def cpu_model(cpu_info: Path) -> str:
    """The processor's name where the system tells it, else its architecture."""
    try:
        lines = cpu_info.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
