"""Secrets are found where a reference says, and are never part of an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config.secrets import find_secret
from headgate.errors import InvalidConfig


def test_a_variable_and_a_file_are_found(tmp_path: Path) -> None:
    kept = tmp_path / "password"
    kept.write_text("s3 cret\n")
    assert find_secret("PASSWORD", environ={"PASSWORD": "p@ss"}) == "p@ss"
    assert find_secret(f"file:{kept}") == "s3 cret"
    kept.write_text("changed")
    assert find_secret(f"file:{kept}") == "changed"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no PASSWORD"):
        find_secret("PASSWORD", environ={"OTHER": "s3cret", "PASSWORD": ""})
    with pytest.raises(InvalidConfig, match=r"nowhere.*No such file"):
        find_secret(f"file:{tmp_path / 'nowhere'}")
    unreadable = tmp_path / "bytes"
    unreadable.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="UTF-8"):
        find_secret(f"file:{unreadable}")
