"""Making of the model, offline or by LangChain, and hiding of its keys.

Errors quote servers, and servers quote keys, so `redact` removes keys from every stored text.
"""

import json
import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from dotenv import dotenv_values
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr

from agent_runtime.graph.offline.model import OfflineModel
from agent_runtime.model.turn import TurnContext
from turnkeeper.clock import Clock
from turnkeeper.config.build import install_command
from turnkeeper.config.home import Home
from turnkeeper.config.models import OFFLINE, full_name, key_name, package_of
from turnkeeper.config.settings import ModelSettings, Settings
from turnkeeper.errors import InvalidInput

HIDDEN = "[secret]"
SHORTEST = 6  # a shorter value would hide parts of ordinary words
NONE: Mapping[str, str] = MappingProxyType({})
_TELLING = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)


def known_secrets(
    home: Home, environ: Mapping[str, str], base_url: str, project: Mapping[str, str] = NONE
) -> frozenset[str]:
    """Return the values that must never be shown.

    These are all values in the home's `.env` and an author's `project`, the environment's keys, and the server's
    password.
    """
    stated = dotenv_values(home.environment, interpolate=False).values() if home.environment.is_file() else ()
    named = (value for name, value in environ.items() if _TELLING.search(name))
    return _long_enough([*stated, *project.values(), *named, *_password(base_url)])


def secrets_of(model: Any) -> frozenset[str]:
    held = (getattr(model, name, None) for name in type(model).model_fields)
    return _long_enough(value.get_secret_value() for value in held if isinstance(value, SecretStr))


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text without any of the secrets.

    >>> redact("no such key: sk-123456", ["sk-123456"])
    'no such key: [secret]'
    """
    for secret in sorted(secrets, key=len, reverse=True):  # one secret may be part of another
        text = text.replace(secret, HIDDEN)
    return text


def shown_url(url: str) -> str:
    """Return an address without user, password, query and fragment, each of which may hold a key.

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


DELAY = "TURNKEEPER_OFFLINE_DELAY_S"
LONGEST_DELAY_S = 3600.0
MOST_MADE = 32  # the most models that are kept: those that were used last
_READ = {"model", "base_url"}  # the keys of a task's or an assistant's config that our own agent reads
_WANTED = {
    "max_retries": 0,  # only Turnkeeper's layer retries, because it waits on Turnkeeper's clock and logs each try
    "streaming": True,  # a cancelled turn stops at the next piece
    "stream_usage": True,  # a streaming server reports its tokens only on request
}


def make_model(settings: ModelSettings, home: Home, *, clock: Clock, environ: Mapping[str, str]) -> BaseChatModel:
    """Return the settings' model; a provider's keys come from the environment, else from `<home>/.env`.

    `TURNKEEPER_OFFLINE_DELAY_S` delays each answer of the offline model, for demonstrations.

    Raises:
        InvalidInput: an unknown model, a provider that is not installed, a `.env` that others can read.
    """
    if settings.name == OFFLINE:
        return OfflineModel(clock=clock, delay_s=_delay(environ))
    take_keys(home, environ)
    where = f"{home.config}: model.name"
    if settings.base_url and not _is_address(settings.base_url):
        hint = "write for example http://127.0.0.1:8000/v1"
        raise InvalidInput("is not the address of a server", where=f"{home.config}: model.base_url", hint=hint)
    try:
        name = full_name(settings.name, settings.base_url)
    except InvalidInput as error:
        raise InvalidInput(f"{settings.name!r}: {error.what}", where=where, hint=error.hint) from error
    try:
        return _make(name if settings.base_url else settings.name, settings.base_url)
    except ImportError as error:
        what = f"the model {settings.name!r} needs a package that is not installed"
        raise InvalidInput(what, where=where, hint=f"run: {install_command(package_of(name))}") from error
    except Exception as error:
        hint = "use 'offline' or a string such as openai:gpt-5, with its key in the environment or in .env"
        if settings.base_url:
            hint += "; if the server needs no key, set any value, such as OPENAI_API_KEY=none"
        lines = (line.strip().removesuffix(".") for line in str(error).splitlines())  # libraries print whole pages
        said = redact(
            next(filter(None, lines), "no reason given"),
            known_secrets(home, {**os.environ, **environ}, settings.base_url),
        )
        if not settings.base_url and key_name(name) not in {"", *os.environ}:
            said = f"{key_name(name)} is not set"
        raise InvalidInput(f"the model {settings.name!r} cannot be made: {said}", where=where, hint=hint) from error


class Models:
    """The models of our own agent: the home's model, and those that tasks, assistants and categories choose."""

    def __init__(self, settings: Settings, home: Home, *, clock: Clock, environ: Mapping[str, str]) -> None:
        self._settings = settings.model
        named = (str(one.config.get("base_url")) for one in settings.assistants.values())
        self._addresses = {"", settings.model.base_url, *named}
        self._made = lru_cache(MOST_MADE)(partial(make_model, home=home, clock=clock, environ=environ))

    def __call__(self, config_json: str = "", of_category: str = "", place: str = "config.model") -> BaseChatModel:
        """Return the model of a turn, made at its first use.

        Raises InvalidInput if the model cannot be made, at `place` unless the home's model has the same name.
        """
        wanted = chosen(self._settings, config_json, of_category)
        if wanted.base_url not in self._addresses:  # the key and the conversation would be sent there
            hint = "add it to [model] base_url or to an [assistants.NAME] config there, or omit it"
            raise InvalidInput("is not an address of config.toml", where="config.base_url", hint=hint)
        try:
            return self._made(wanted)
        except InvalidInput as error:
            if wanted.name != self._settings.name and error.where.endswith(": model.name"):
                error.where = place
            raise

    def check(self, context_json: str, config_json: str) -> None:
        """Raise InvalidInput for a key that our own agent does not read, or a model that cannot be made."""
        for field, text, known in (("context", context_json, set()), ("config", config_json, _READ)):
            if unread := json.loads(text or "{}").keys() - known:
                hint = f"in config it reads {' and '.join(sorted(_READ))}"
                raise InvalidInput(f"the built-in agent does not read {min(unread)[:80]!r}", where=field, hint=hint)
        self(config_json)


def place_of(turn: TurnContext) -> str:
    """Return the setting that names a turn's model, if the model is not the home's."""
    if json.loads(turn.config_json or "{}").get("model"):
        return f"config.model of {f'the task {turn.task_name}' if turn.task_name else 'the thread'} or its assistant"
    return f"categories/{turn.category.name}.toml: model"


def chosen(settings: ModelSettings, config_json: str = "", of_category: str = "") -> ModelSettings:
    """Return the settings of a turn's model. A model of the same provider is at the same server unless it names one."""
    config, home = json.loads(config_json or "{}"), settings.name.partition(":")[0]
    is_foreign = config.get("base_url") and of_category.partition(":")[0] != home  # no server gets its provider's key
    name = str(config.get("model") or ("" if is_foreign else of_category) or settings.name)
    usual = settings.base_url if name.partition(":")[0] == home else ""
    return settings.model_copy(update={"name": name, "base_url": str(config.get("base_url") or usual)})


def _make(name: str, base_url: str) -> BaseChatModel:
    """Make the model, then make it again with those options of `_WANTED` that its class has."""
    options: dict[str, Any] = {"base_url": base_url} if base_url else {}
    first: BaseChatModel = init_chat_model(name, **options)
    understood = {name: value for name, value in _WANTED.items() if name in type(first).model_fields}
    options |= understood
    made: BaseChatModel = init_chat_model(name, **options)
    show_refusals(made)
    return made


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def take_keys(home: Home, environ: Mapping[str, str]) -> None:
    """Put the keys of `<home>/.env` into the process's environment for the providers' libraries, unless set there."""
    path = home.environment
    if not path.exists():
        return
    home.check_keys()
    for key, value in dotenv_values(path, interpolate=False).items():
        if value is not None and key not in environ:
            os.environ[key] = value


def _delay(environ: Mapping[str, str]) -> float:
    try:
        delay = float(environ.get(DELAY) or 0)
    except ValueError as error:
        raise InvalidInput(f"{environ[DELAY]!r} is not a number of seconds", where=DELAY) from error
    if not 0 <= delay <= LONGEST_DELAY_S:
        raise InvalidInput(f"must be 0 to {LONGEST_DELAY_S:.0f} seconds", where=DELAY)
    return delay


def show_refusals(model: Any) -> None:
    """Make a model of the OpenAI family return refusals as text, also in a stream; leave any other model unchanged.

    Such a model puts a refusal into a separate field, which LangChain's client ignores while streaming. The answer
    would look empty, as if a fire had nothing to do.
    """
    client = getattr(model, "async_client", None)
    if callable(getattr(client, "create", None)):
        model.async_client = _Client(client)


class _Client:
    """The library's client, with refusals as text in its stream."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def create(self, **payload: Any) -> Any:
        answer = await self._client.create(**payload)
        return _opened(answer) if payload.get("stream") else answer


@asynccontextmanager
async def _opened(stream: Any) -> AsyncIterator[AsyncIterator[Any]]:
    async with stream:
        yield _with_refusals(stream)


async def _with_refusals(stream: Any) -> AsyncIterator[Any]:
    async for piece in stream:
        for choice in getattr(piece, "choices", None) or ():
            if words := getattr(choice.delta, "refusal", None):
                choice.delta.content = f"{choice.delta.content or ''}{words}"
        yield piece
