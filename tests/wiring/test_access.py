from __future__ import annotations

import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.config import Config
from headgate.config.sections.security import JwtSettings, SecuritySettings
from headgate.errors import DataFolderError, InvalidConfig
from headgate.model.access import Grant
from headgate.wiring.access import (
    AdminKey,
    access_options,
    admin_key,
    known_principals,
    leave_admin_key,
)


def _with(**jwt: object) -> Config:
    return Config(security=SecuritySettings(jwt=JwtSettings.model_validate(jwt)))


def test_the_grants_of_every_jwt_are_parsed() -> None:
    options = access_options(_with(grants="produce on a; subscribe on b where x == claims.x;"))
    assert options.claims.grants == (
        Grant("produce", topics=("a",)),
        Grant("subscribe", topics=("b",), where="x == claims.x"),
    )


def test_grants_that_are_none_are_refused_by_their_key() -> None:
    with pytest.raises(InvalidConfig, match=r"security\.jwt\.grants: 'everything' is no grant"):
        access_options(_with(grants="everything"))


@pytest.mark.parametrize(
    "security",
    [SecuritySettings(enabled=True), SecuritySettings(admin_token="t" * 22)],
    ids=["enabled", "admin token"],
)
def test_everybody_has_to_say_who_they_are(security: SecuritySettings) -> None:
    assert known_principals(Config(), "gateway") is None
    assert known_principals(Config(security=security), "gateway") is not None


def test_the_key_of_a_coordinator_is_left_for_its_owner_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = DataFolder.open(tmp_path_factory.mktemp("data") / "data")
    with pytest.raises(DataFolderError, match="has no key of a coordinator"):
        admin_key(folder)
    leave_admin_key(folder, "http://127.0.0.1:1", "secret")
    assert admin_key(folder) == AdminKey("http://127.0.0.1:1", "secret")
    assert folder.admin_key_file.stat().st_mode & 0o777 == 0o600
