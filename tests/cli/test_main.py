"""The command as a whole: help, version, mistakes, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from headgate.cli.main import COMMANDS
from tests.cli.command import ended, headgate
from tests.client.producing.produce_server import ProduceServer


async def test_help_names_every_command() -> None:
    result = await headgate("--help")
    assert result.code == 0
    for name, command in COMMANDS.items():
        assert f"{name} " in result.out
        assert command.help in result.out


@pytest.mark.parametrize("name", COMMANDS)
async def test_every_command_has_help(name: str) -> None:
    result = await headgate(name, "--help")
    assert (result.code, result.err) == (0, "")
    assert f"Usage: headgate {name}" in result.out


def test_help_does_not_load_what_is_heavy() -> None:
    program = (
        "import sys, headgate.cli.main as main\n"
        "try: main.app(['--help'], prog_name='headgate')\n"
        "except SystemExit: pass\n"
        "heavy = {'pyspark', 'grpc', 'pandas', 'pyarrow', 'apsw', 'granian', 'pyreqwest'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stderr == ""


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
imported, sys.argv[1:] = sys.argv[1], ["config", "show"]
class Library:
    \"""Whose import a Ctrl-C meets, and which swallows what comes of it.\"""
    def find_spec(self, name, *_):
        if name == imported:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass
sys.meta_path.insert(0, Library())
runpy.run_module("headgate", run_name="__main__")
"""


@pytest.mark.parametrize("imported", ["click", "headgate.config"])
def test_a_ctrl_c_while_a_command_is_loaded_ends_it_without_a_word(imported: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, imported]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


async def test_the_version_is_the_packages() -> None:
    assert (await headgate("--version")).out == f"headgate {version('headgate')}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(
            ["statsu"],
            "No such command 'statsu'. Did you mean 'status'? See `headgate --help`\n",
            id="command",
        ),
        pytest.param(["topic", "list", "--all"], "No such option", id="option"),
        pytest.param(["topic", "create"], "Missing argument 'NAME'", id="argument"),
        pytest.param(
            ["topic", "create", "x", "--partitions", "0"],
            "'--partitions': must be at least 1; see `headgate topic create --help`\n",
            id="range",
        ),
        pytest.param(
            ["topic", "create", "x", "--placement", "random"], "placement': 'random'", id="choice"
        ),
        pytest.param(["produce", "t", "--batch", "1001"], "must be at most 1000;", id="batch"),
        pytest.param(["produce", "t", "--batch", "x"], "must be a valid integer", id="number"),
        pytest.param(["status", "--url", "localhost"], "is not a Headgate address", id="url"),
    ],
)
async def test_a_wrong_command_line_ends_with_code_2(arguments: list[str], sentence: str) -> None:
    result = await headgate(*arguments)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert "Traceback" not in result.err


async def test_nothing_at_the_address_is_one_sentence(unused_tcp_port: int) -> None:
    """Of all commands at once: each tries for a while."""
    url = f"http://127.0.0.1:{unused_tcp_port}"
    commands = [
        *("topic list", "produce t", "subscribe t", "status", "topic describe t", "node list"),
        *("node drain n", "rebalance", "dlq list", "dlq show 1", "dlq retry --all", "dlq delete 1"),
    ]
    results = await asyncio.gather(
        *(headgate(*command.split(), "--url", url, given=b"{}\n") for command in commands)
    )
    sentence = (
        f"headgate: nothing answers at {url}; start it with `headgate up` (if that runs, try again "
        "in a moment), or name another address with --url\n"
    )
    for command, result in zip(commands, results, strict=True):
        assert (result.code, sentence in result.err) == (1, True), command
        assert "Traceback" not in result.err, command


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
async def test_a_reader_that_leaves_is_no_reason_to_complain(
    server: ProduceServer, unbuffered: str
) -> None:
    for number in range(800):  # much more than a pipe holds
        server.add_topic(f"topic-with-a-long-name-{number:0200}")
    pipeline = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        f"{sys.executable} -m headgate topic list --url {server.url} | head -n 1; "
        'exit "${PIPESTATUS[0]}"',
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    result = await ended(pipeline)
    assert (result.code, result.err) == (141, "")


@pytest.mark.parametrize(
    "arguments",
    [["--nonsense"], ["nonsense"], ["topic", "creat"], ["topic", "create"], ["status", "--jsn"]],
    ids=" ".join,
)
async def test_a_wrong_option_argument_or_command_is_one_sentence(arguments: list[str]) -> None:
    result = await headgate(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("headgate: ")
    assert result.err.count("\n") == 1
    assert "--help`" in result.err
