"""A router that had to start without a class archive has one made, for its next start.

In a process of its own and not at once: while Headgate starts, its roles need the processor. It
ends with the router, whole or not; what is half made isn't used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

import structlog

from headgate.spark.starting.class_archive import ClassArchive
from headgate.spark.windows.query import in_thread
from headgate.telemetry import LogLine

log = structlog.get_logger()

MAKE_AFTER_S = 60.0
COMMAND = (sys.executable, "-m", "headgate.spark.starting.training")


async def make_archive(
    archive: ClassArchive,
    environ: Mapping[str, str],
    *,
    after_s: float = MAKE_AFTER_S,
    command: Sequence[str] = COMMAND,
) -> None:
    """Returns when there is an archive, or there can't be one."""
    if not archive.is_wanted():
        return
    await asyncio.sleep(after_s)
    if archive.is_wanted():  # no other process has made it since
        made = await _run(command, environ) == 0 and archive.find() is not None
        log.info(LogLine.CLASS_ARCHIVE, made=made, folder=str(archive.folder))


async def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    # Not by asyncio, which may fork: gRPC's threads wouldn't survive that.
    process = subprocess.Popen(  # noqa: ASYNC220  # returns at once
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return await in_thread(process.wait)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
