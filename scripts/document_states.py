"""Renews the diagrams of states in documents, from the tables of headgate.decide.states.

`python scripts/document_states.py docs/states.md` writes what lies between

    <!-- states of package.module:TABLE -->
    <!-- end of states -->
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from headgate.decide.states import Table, renewed


def table_of(module: str, name: str) -> Table:
    return getattr(importlib.import_module(module), name)


def main(documents: list[str]) -> None:
    for document in map(Path, documents):
        text = document.read_text(encoding="utf-8")
        document.write_text(renewed(text, table_of), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
