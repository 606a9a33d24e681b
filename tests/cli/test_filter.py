"""`headgate filter test`: a filter tried on documents, without a Headgate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Ended, headgate

LINES = b'{"altitude":2100,"name":"x"}\n{"altitude":"high"}\n\n{"altitude":9000,"name":"y"}\n'


async def tried(where: str, *arguments: str, given: bytes = LINES) -> Ended:
    return await headgate("filter", "test", "--where", where, *arguments, given=given)


async def test_each_document_is_told_by_each_condition() -> None:
    result = await tried('altitude < 3000 && name == "x"')
    assert (result.code, result.err) == (0, "1 of 3 documents match\n")
    assert result.shows("altitude < 3000 yes altitude 2100")
    assert result.shows(
        'altitude < 3000 no altitude "high" altitude is a text, and a number is meant'
    )
    assert result.shows('name == "x" no no name it has no name')


async def test_it_prints_json(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text('{\n  "altitude": 2100\n}\n')
    result = await tried("altitude < 3000", str(file), "--json", given=b"")
    assert result.json == {
        "document": 1,
        "verdict": "match",
        "conditions": [
            {
                "condition": "altitude < 3000",
                "verdict": "match",
                "values": [{"field": "altitude", "value": "2100"}],
            }
        ],
    }


async def test_none_that_matches_ends_with_1() -> None:
    result = await tried("altitude < 0")
    assert (result.code, result.err) == (1, "0 of 3 documents match\n")


async def test_what_is_wrong_is_marked_at_its_place() -> None:
    result = await tried("altitude << 3000")
    assert result.code == 2
    first, mark, sentence = result.err.splitlines()
    assert first == "  altitude << 3000"
    assert mark == "  " + " " * 10 + "^"
    assert sentence.startswith("headgate: The filter is wrong at column 11")


async def test_a_text_without_its_quotes_is_hinted_at() -> None:
    result = await tried("name == x")
    assert "headgate: hint: in name == x the word x is a field" in result.err


async def test_the_key_and_the_collection_can_be_asked_for() -> None:
    result = await tried('_key == "a" && _collection == "c"', "--key", "a", "--collection", "c")
    assert result.code == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (b"{", "headgate: this is not a JSON document"),
        (b'{"a":1}\n{', "headgate: line 2 is not a JSON document"),
    ],
)
async def test_what_is_no_json_is_one_sentence(given: bytes, says: str) -> None:
    result = await tried("a == 1", given=given)
    assert result.code == 2
    assert says in result.err
    assert "Traceback" not in result.err


async def test_a_file_that_is_not_there_is_one_sentence() -> None:
    result = await tried("a == 1", "/nowhere/at/all")
    assert (result.code, result.err) == (
        2,
        "headgate: /nowhere/at/all can't be read: No such file or directory\n",
    )
