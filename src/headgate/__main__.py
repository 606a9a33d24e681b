"""`python -m headgate` is the `headgate` command."""

from headgate.cli.main import run

run()
