"""The tokens of a cluster, as a setting names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import environment_of
from headgate.config.cluster_tokens import find_cluster_tokens
from headgate.errors import InvalidConfig
from tests.config.conftest import Load

ONE, OTHER = "one-token-of-the-cluster", "other-token-of-the-cluster"
KEY = "security.cluster.tokens"


@pytest.mark.parametrize(
    "given",
    [
        {"yaml": f"security: {{cluster: {{tokens: [{ONE}, {OTHER}]}}}}"},
        {"environ": {"HEADGATE_SECURITY__CLUSTER__TOKENS": f"{ONE},{OTHER}"}},
        {"command_line": {KEY: f"{ONE}, {OTHER}"}},
    ],
    ids=["a list in a file", "a variable", "the command line"],
)
def test_two_tokens_from_wherever_they_come(load: Load, given: dict[str, object]) -> None:
    config = load(**given).config
    assert find_cluster_tokens(config.security.cluster.tokens).tokens == (ONE, OTHER)
    assert load(environ=environment_of(config)).config == config


def test_a_token_by_a_variable_and_one_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{OTHER}\n")
    found = find_cluster_tokens(f"env:OURS,file:{file}", environ={"OURS": ONE})
    assert found.tokens == (ONE, OTHER)


def test_no_token_is_none() -> None:
    assert find_cluster_tokens(" ").tokens == ()


@pytest.mark.parametrize(
    "tokens",
    [
        "sh0rt-secret",
        f"{ONE},{OTHER},third-token-of-the-cluster",
        f"{ONE},",
        "env:",
        "file:",
        f"{ONE} {OTHER}",
    ],
    ids=["short", "three", "one and nothing", "no variable", "no file", "white space"],
)
def test_what_is_no_token_is_refused_without_being_shown(load: Load, tokens: str) -> None:
    with pytest.raises(InvalidConfig, match="must be one or two of") as caught:
        load(command_line={KEY: tokens})
    assert "security.cluster.tokens is something else" in str(caught.value)
    assert not {ONE, "sh0rt-secret"} & set(str(caught.value).split())
    assert ONE not in str(caught.value)


def test_a_short_token_in_a_file_is_refused_without_being_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("sh0rt-secret")
    with pytest.raises(InvalidConfig, match="has 12 characters, and needs 22") as caught:
        find_cluster_tokens(f"file:{file}")
    assert "sh0rt-secret" not in str(caught.value)
    assert caught.value.details["key"] == KEY


@pytest.mark.parametrize("reference", ["env:NOWHERE", "file:/nowhere/at/all"])
def test_a_token_that_cant_be_found_says_where_it_was_looked_for(reference: str) -> None:
    with pytest.raises(InvalidConfig, match=reference.partition(":")[2]):
        find_cluster_tokens(reference, environ={})
