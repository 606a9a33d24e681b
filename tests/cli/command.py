"""Runs the `headgate` command as a user does: as a process of its own."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from tests.forks import AsyncFork, forked

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return msgspec.json.decode(self.out)

    def shows(self, row: str) -> bool:
        """Whether a line of the output has these words, whatever is between them."""
        return row.split() in [line.split() for line in self.out.splitlines()]


async def started(
    *arguments: str, url: str = "", variables: Mapping[str, str] = MappingProxyType({})
) -> AsyncFork:
    """A process whose standard input is a pipe, with more `variables` in its environment."""
    environment = {name: value for name, value in os.environ.items() if name != "HEADGATE_URL"}
    environment |= variables
    if url:
        environment["HEADGATE_URL"] = url
    command = ("-m", "headgate", *arguments)
    return await forked(command, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE)


async def ended(process: Process | AsyncFork, given: bytes | None = None) -> Ended:
    out, err = await asyncio.wait_for(process.communicate(given), TIMEOUT_S)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def headgate(
    *arguments: str,
    url: str = "",
    given: bytes = b"",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Ended:
    return await ended(await started(*arguments, url=url, variables=variables), given)
