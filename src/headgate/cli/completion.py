"""`headgate completion`: what a shell needs to complete commands, options and choices.

The shell then asks `headgate` itself with every Tab, which answers without asking any server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from headgate.cli.command_line import Argument

VARIABLE = "_HEADGATE_COMPLETE"
"""By which the shell says that it asks, and how; the library derives it from the command's name."""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, Argument(help="The shell that is to complete.")],
) -> None:
    """Print what makes a shell complete `headgate` commands.

    In ~/.bashrc: eval "$(headgate completion bash)"; in ~/.zshrc: eval "$(headgate completion
    zsh)"; for fish: headgate completion fish > ~/.config/fish/completions/headgate.fish
    """
    from click.shell_completion import get_completion_class

    from headgate.cli.main import app

    made = get_completion_class(shell.value)
    assert made is not None, f"the library knows {shell}"
    print(made(app, {}, "headgate", VARIABLE).source())
