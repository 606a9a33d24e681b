"""What the quick commands import: whoever asks how things are shouldn't wait for anything else."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from tests.cli.operated import OperatedServer, partition, topic

TELLING = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
from headgate.cli.entry import run
sys.argv = ["headgate", *sys.argv[1:]]
run()
"""
"""The command, as the script in `bin/` begins it; its last word is what it has imported."""
CALLING = {"click", "msgspec", "pyreqwest", "typing_extensions"}
"""The last one for the one before."""
LIBRARIES = {
    "help": {"click"},
    "status": {*CALLING, "rich"},
    "status --json": CALLING,
}
OURS = {
    "help": {"cli", "errors"},
    "status": {"adapters", "cli", "client", "config", "deaths", "decide", "errors", "model"}
    | {"ports", "tasks"},
}
OURS["status --json"] = OURS["status"]
NOT_OURS = (
    "headgate.config.schema",
    "headgate.config.sections",
    "headgate.config.value_types",
    "headgate.decide.filter",
    "headgate.decide.conversation",
    "headgate.adapters.grpc",
    "headgate.adapters.picows",
)
"""Within those: what takes long."""


async def loaded(*arguments: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        TELLING,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    found: list[str] = json.loads(said.splitlines()[-1])
    assert process.returncode == 0
    return found


@pytest.mark.parametrize("command", LIBRARIES)
async def test_a_quick_command_imports_no_more_than_it_needs(
    operated: OperatedServer, command: str
) -> None:
    operated.now.topics.append(topic("flights", partition(0, rate=12.0)))
    words = command.split()
    names = await loaded(*(["--help"] if command == "help" else [*words, "--url", operated.url]))
    roots = {name.partition(".")[0] for name in names if not name.startswith("_")}
    libraries = roots - sys.stdlib_module_names - {"headgate"}
    assert libraries <= LIBRARIES[command]
    ours = {name.split(".")[1] for name in names if name.startswith("headgate.")}
    assert ours <= OURS[command]
    assert [name for name in names if name.startswith(NOT_OURS)] == []
