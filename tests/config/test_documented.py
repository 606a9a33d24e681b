from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config.document import document_keys, renewed
from headgate.config.keys import KEYS, Key

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_document_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == renewed(text), "run: python -m headgate.config.document docs/configuration.md"


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
def test_every_key_says_what_it_means_and_may_be(key: Key) -> None:
    assert key.field.description, "write a docstring below the field"
    assert key.allowed
    assert f"| `{key.name}` |" in document_keys()


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
def test_every_default_can_be_written_the_way_it_is_shown(key: Key) -> None:
    shown = key.text(key.default)
    assert str(key.parse(shown)) == str(key.default) or key.field.annotation is bool
