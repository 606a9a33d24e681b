"""What an error of PostgreSQL's says to an operator."""

from __future__ import annotations

import psycopg
import pytest

from headgate.adapters.pgoutput.errors import origin_error
from headgate.errors import OriginUnavailable


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("XX000", "PostgreSQL reports an error (no such file)"),
        ("57P01", "PostgreSQL can't be reached (no such file)"),
        ("", "PostgreSQL can't be reached (no such file)"),
    ],
)
def test_a_server_that_fails_in_itself_is_not_said_to_be_away(state: str, says: str) -> None:
    """As a stream does that it can't read its own log for: to look for the network is no help."""
    meant = origin_error(psycopg.OperationalError("no such file"), sqlstate=state)
    assert isinstance(meant, OriginUnavailable)
    assert meant.message == says
