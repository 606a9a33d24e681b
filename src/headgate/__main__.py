"""`python -m headgate` is the `headgate` command."""

from headgate.cli.entry import run

run()
