"""The stylesheet's colours can be read, on light and on dark."""

from __future__ import annotations

import re

import pytest

from headgate.adapters.web_files import packaged_files

THEMES = ("light", "dark")
TOKEN = re.compile(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);")
GROUNDS = ("ground", "surface", "raised")
TEXTS = ("ink", "ink-soft", "accent", "good", "warn", "bad")
MARKS = ("edge", *(f"series-{number}" for number in range(1, 9)))
ON = [("on-accent", "accent"), ("on-bad", "bad")] + [
    (name, f"{name}-ground") for name in ("good", "warn", "bad")
]
TEXT_CONTRAST, MARK_CONTRAST = 4.5, 3.0


def tokens(theme: str) -> dict[str, str]:
    text = packaged_files()["styles.css"].content.decode()
    return {name: pair[THEMES.index(theme)] for name, *pair in TOKEN.findall(text)}


def luminance(colour: str) -> float:
    """As WCAG 2.2 computes it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_texts_and_marks_stand_out_from_every_ground(theme: str) -> None:
    colours = tokens(theme)
    pairs = [(text, on, TEXT_CONTRAST) for text in TEXTS for on in GROUNDS]
    pairs += [(mark, on, MARK_CONTRAST) for mark in MARKS for on in GROUNDS]
    pairs += [(text, on, TEXT_CONTRAST) for text, on in ON]
    weak = {
        (text, on): round(contrast(colours[text], colours[on]), 2)
        for text, on, least in pairs
        if contrast(colours[text], colours[on]) < least
    }
    assert weak == {}
