"""What a shell completes, as it asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import headgate

BESIDE_PYTHON = str(Path(sys.executable).parent)
TAB = """
eval "$(headgate completion bash)"
COMP_WORDS=({words}) COMP_CWORD={at}
_headgate_completion headgate
echo "${{COMPREPLY[@]}}"
"""


def completed(words: str) -> list[str]:
    """What bash offers for the last of the words, which may be empty."""
    given = words.split(" ")
    quoted = " ".join(word or '""' for word in given)
    script = TAB.format(words=quoted, at=len(given) - 1)
    path = os.pathsep.join([BESIDE_PYTHON, os.environ["PATH"]])
    result = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        pytest.param("headgate sub", ["subscribe"], id="command"),
        pytest.param("headgate topic re", ["repartition"], id="command of a group"),
        pytest.param("headgate explain --sub", ["--subscription"], id="option"),
        pytest.param("headgate demo --source ", ["produce", "mongodb", "postgresql"], id="choice"),
    ],
)
def test_bash_completes(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


@pytest.mark.parametrize(
    ("shell", "asks"),
    [("bash", "bash_complete"), ("zsh", "zsh_complete"), ("fish", "fish_complete")],
)
async def test_each_shell_is_told_how_to_ask(shell: str, asks: str) -> None:
    result = await headgate("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert f"_HEADGATE_COMPLETE={asks}" in result.out


async def test_another_shell_is_refused_in_a_sentence() -> None:
    result = await headgate("completion", "tcsh")
    assert (result.code, result.out) == (2, "")
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in result.err
