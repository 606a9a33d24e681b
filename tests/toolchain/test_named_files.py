"""What a docstring or a comment says of another file is about one that is there."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src/headgate"
FILES = [
    f"/{path.relative_to(ROOT)}"
    for folder in ("src", "tests", "scripts")
    for path in (ROOT / folder).rglob("*.py")
]
_NAMED = re.compile(r"[\w/]+\.py\b")


def named_in(path: Path) -> Iterator[str]:
    with io.StringIO(path.read_text()) as text:
        for token in tokenize.generate_tokens(text.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield from _NAMED.findall(token.string)


def test_a_file_that_is_named_is_there() -> None:
    named = {(path, name) for path in SOURCES.rglob("*.py") for name in named_in(path)}
    assert len(named) > 50
    gone = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in sorted(named)
        if not any(file.endswith(f"/{name}") for file in FILES)
    ]
    assert gone == []
