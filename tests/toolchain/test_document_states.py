"""The diagrams of states in docs/ are those of the tables."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "states.md"
SCRIPT = ROOT / "scripts" / "document_states.py"
main: Callable[[list[str]], None] = runpy.run_path(str(SCRIPT))["main"]


def test_the_document_is_current(tmp_path: Path) -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    copy = tmp_path / "states.md"
    copy.write_text(written, encoding="utf-8")
    main([str(copy)])
    current = copy.read_text(encoding="utf-8")
    assert written == current, "run: python scripts/document_states.py docs/states.md"
