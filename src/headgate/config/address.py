"""The address that a client command calls, and what is needed to find it: variables and `.env`.

Loads nothing of the schema: most commands want to know no more than this, and to be quick.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

from headgate.errors import InvalidConfig
from headgate.model.api import DEFAULT_URL

ENV_PREFIX = "HEADGATE_"


def server_url(
    given: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    working_dir: Path | None = None,
) -> str:
    """The address a client command calls: its --url, else HEADGATE_URL, else the default."""
    variables = os.environ if environ is None else environ
    dotenv = read_dotenv(dotenv_path(working_dir))
    return given or variables.get("HEADGATE_URL") or dotenv.get("HEADGATE_URL") or DEFAULT_URL


def find_token(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    working_dir: Path | None = None,
) -> Path | str | None:
    """The file of a client command's token, or the token itself: its --token-file, else
    HEADGATE_TOKEN_FILE, else HEADGATE_TOKEN; None where there is none."""
    if file is not None:
        return file
    variables = os.environ if environ is None else environ
    dotenv = read_dotenv(dotenv_path(working_dir))
    named = variables.get("HEADGATE_TOKEN_FILE") or dotenv.get("HEADGATE_TOKEN_FILE")
    if named:
        return Path(named).expanduser()
    return variables.get("HEADGATE_TOKEN") or dotenv.get("HEADGATE_TOKEN") or None


def read_token(path: Path) -> str:
    """The token in the file, without the line's end. Raises InvalidConfig, which doesn't show
    it."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidConfig(f"can't read the token in {path}: {reason}", path=str(path)) from None
    if not token or any(not "!" <= char <= "~" for char in token):
        raise InvalidConfig(f"{path} holds no token: one line is expected", path=str(path))
    return token


def dotenv_path(working_dir: Path | None) -> Path:
    return working_dir / ".env" if working_dir else Path(".env")


def read_dotenv(path: Path) -> dict[str, str]:
    """Every entry of `path`, {} when there is no such file."""
    if not path.is_file():
        return {}
    from dotenv.parser import parse_stream

    entries: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text_of(path))):
        ours = (binding.key or "").upper().startswith(ENV_PREFIX)
        if binding.error or (ours and binding.value is None):
            line = binding.original.line
            raise InvalidConfig(f"line {line} of {path} is not NAME=VALUE", line=line)
        if binding.key and binding.value is not None:
            entries[binding.key] = binding.value
    return entries


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InvalidConfig(f"there is no configuration file {path}", path=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidConfig(f"can't read {path}: {reason}", path=str(path)) from error
