"""Keeping keys out of what is written: errors quote servers, and servers quote keys."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from dotenv import dotenv_values
from pydantic import SecretStr

from turnkeeper.config.home import Home

HIDDEN = "[secret]"
SHORTEST = 6  # a shorter value would hide parts of ordinary words
NONE: Mapping[str, str] = MappingProxyType({})
_TELLING = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)


def known_secrets(
    home: Home, environ: Mapping[str, str], base_url: str, project: Mapping[str, str] = NONE
) -> frozenset[str]:
    """Return the values that must never be shown.

    Everything in the home's `.env` and among the variables of an author's `project`, what the environment names as
    keys, and a password inside the server's address.
    """
    stated = dotenv_values(home.environment, interpolate=False).values() if home.environment.is_file() else ()
    named = (value for name, value in environ.items() if _TELLING.search(name))
    return _long_enough([*stated, *project.values(), *named, *_password(base_url)])


def secrets_of(model: Any) -> frozenset[str]:
    """Return the secrets that a model object holds."""
    held = (getattr(model, name, None) for name in type(model).model_fields)
    return _long_enough(value.get_secret_value() for value in held if isinstance(value, SecretStr))


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text without any of the secrets.

    >>> redact("no such key: sk-123456", ["sk-123456"])
    'no such key: [secret]'
    """
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, HIDDEN)
    return text


def shown_url(url: str) -> str:
    """Return an address without a user, a password and what follows its path: each may be a key.

    >>> shown_url("http://me:word@localhost:8000/v1?key=word")
    'http://localhost:8000/v1'
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _password(url: str) -> list[str]:
    try:
        password = urlsplit(url).password or ""
    except ValueError:
        return []
    return [password, unquote(password)]


def _long_enough(values: Iterable[str | None]) -> frozenset[str]:
    return frozenset(value for value in values if value and len(value) >= SHORTEST)
