"""Settings of a connector to MongoDB: what is taken, what is refused, and that no secret is."""

from __future__ import annotations

import pytest

from headgate.decide.connectors.mongo_settings import check_settings, read_settings, user_info
from headgate.errors import InvalidRequest

URI = "mongodb://host:27017/?replicaSet=rs0"


@pytest.mark.parametrize(
    "uri",
    [
        URI,
        "mongodb+srv://cluster.example.net",
        "mongodb://reader@host/",
        "mongodb://reader:${PASSWORD}@host,host2:27018/?replicaSet=rs0",
        "mongodb://${USER}:${file:/run/secrets/mongo}@host/?authSource=admin",
        "mongodb://${file:/run/secrets/user-and-password}@host",
        "${MONGO_URI}",
        "${file:/run/secrets/uri}",
        "mongodb://host/?readPreference=primary",
        "mongodb://host/?tls=true&tlsCertificateKeyFilePassword=${KEY_PASSWORD}",
        "mongodb://host/?authMechanismProperties=SERVICE_NAME:other",
        "mongodb://host/?authMechanismProperties=AWS_SESSION_TOKEN:${TOKEN}",
    ],
)
def test_addresses_without_a_secret_are_taken(uri: str) -> None:
    assert check_settings({"uri": uri}) == {"uri": uri}


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://reader:s3cret@host/",
        "mongodb://reader:s3cret${MORE}@host/",
        "mongodb://reader:${PASSWORD}s3cret@host/",
        "mongodb+srv://:s3cret@host/",
        "mongodb://reader:a@s3cret@host/",
        "mongodb://host/?tlsCertificateKeyFilePassword=s3cret",
        "mongodb://host/?authMechanismProperties=A:b,aws_session_token:s3cret",
        "mongodb://host/?authMechanism=MONGODB-AWS;authMechanismProperties=AWS_SESSION_TOKEN:s3cret",
    ],
)
def test_a_password_in_the_address_is_refused_with_how_to_refer_to_it(uri: str) -> None:
    with pytest.raises(InvalidRequest, match=r"\$\{NAME\}.*\$\{file:") as refused:
        check_settings({"uri": uri})
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(refused.value.details)


@pytest.mark.parametrize(
    ("settings", "key", "sentence"),
    [
        ({}, "uri", "replica set"),
        ({"uri": ""}, "uri", "replica set"),
        ({"uri": "host:27017"}, "uri", "replica set"),
        ({"uri": "prefix${MONGO_URI}"}, "uri", "replica set"),
        ({"uri": "mongodb://host/?readPreference=secondary"}, "uri", "primary"),
        ({"uri": "mongodb://host/?tls=true;readPreference=secondary"}, "uri", "primary"),
        ({"uri": URI, "url": URI}, "url", "did you mean uri"),
        ({"uri": URI, "snapshot": "yes"}, "snapshot", "there are uri, database"),
        ({"uri": URI, "collection": "c"}, "collection", "database"),
        ({"uri": URI, "database": "a.b"}, "database", "name of a database"),
        ({"uri": URI, "database": "local"}, "database", "name of a database"),
        ({"uri": URI, "database": "d", "collection": "system.views"}, "collection", "name of"),
        ({"uri": URI, "earlier": "never"}, "earlier", "off, when_available, required"),
        ({"uri": URI, "document": "off"}, "document", "when_available, lookup, required"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, str], key: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        check_settings(settings)
    assert refused.value.details["key"] == key


def test_what_isnt_said_has_a_default() -> None:
    read = read_settings({"uri": URI})
    assert (read.database, read.collection) == ("", "")
    assert (read.earlier, read.document) == ("when_available", "when_available")


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("mongodb://host/?a=b@c", ""),
        ("mongodb://u:${file:/a/b?c@d}@host/", "u:${file:/a/b?c@d}"),
        ("mongodb://u:p@s@host/", "u:p@s"),
    ],
)
def test_user_and_password_end_with_the_last_at_before_the_path(uri: str, found: str) -> None:
    start, end = user_info(uri)
    assert uri[start:end] == found
