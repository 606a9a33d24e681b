"""Finds a Chromium on this machine: no package index has one."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_GET_ONE = (
    f"no Chromium on the PATH ({', '.join(NAMES)}): install one (Debian: apt install chromium), "
    "then run this again"
)
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
"""In a container there is no sandbox to be had, and little shared memory; these pages are ours."""


def find_chromium() -> str | None:
    """The path of its program."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)
