"""Targets of deliveries: the address, the kinds of results, and the times.

A command replaces the whole file `state/delivery.json`. The file contains secrets: the key for signatures of a webhook,
the address of a chat. Only its owner can read it.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Denied, InvalidInput
from turnkeeper.storage.files import Entries

Kind = Literal["success", "failure", "waits", "run"]
KINDS: tuple[Kind, ...] = ("success", "failure", "waits")  # used if the author chooses no others
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
_PREFIX = "whsec_"  # the beginning of a secret in Standard Webhooks
_SECRET_BYTES = 32
_ANSWERS_WITHIN, _INSTANT = timedelta(minutes=15), timedelta(microseconds=1)


class Target(BaseModel):
    """A destination of results. Exactly one of `webhook`, `service`, `command` and `event` is set.

    Attributes:
        webhook: an http or https URL; each request is signed with `secret`.
        service: a URL of apprise: mailto, slack, tgram, ntfy and many others.
        command: a shell command that gets the delivery in its variables and, as JSON, on its standard input.
        event: the name of an event of this home for which tasks wait; the result is its data.
        on: the kinds of results that are delivered. With `run`, clients' runs may name addresses at the webhook's host.
        tasks: the names of the tasks; empty for all.
        channels: the channels; empty for all.
        quiet: the hours of each day when nothing is sent, as HH:MM-HH:MM; empty for none.
        digest: the time of day, HH:MM, at which one delivery contains all results since the last; empty: one for each.
        timezone: the IANA zone of `quiet` and `digest`; empty for UTC.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    webhook: str = ""
    service: str = ""
    command: str = ""
    event: str = ""
    secret: str = ""
    on: tuple[Kind, ...] = Field(KINDS, min_length=1)
    tasks: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    quiet: Annotated[str, StringConstraints(pattern=r"(?x)^([0-2]\d:[0-5]\d-[0-2]\d:[0-5]\d)?$ # HH:MM-HH:MM")] = ""
    digest: Annotated[str, StringConstraints(pattern=r"(?x)^([0-2]\d:[0-5]\d)?$ # HH:MM")] = ""
    timezone: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if sum(map(bool, (self.webhook, self.service, self.command, self.event))) != 1:
            raise ValueError("give exactly one of --webhook, --service, --command and --event")
        try:
            times = [time.fromisoformat(text) for text in (*filter(None, self.quiet.split("-")), self.digest) if text]
            _ = self.zone
        except (ValueError, ZoneInfoNotFoundError, OSError) as error:
            raise ValueError(f"not a time of day or a time zone: {error}") from error
        if self.quiet and times[0] == times[1]:
            raise ValueError("quiet hours that begin when they end would never end")
        return self

    @property
    def zone(self) -> tzinfo:
        return ZoneInfo(self.timezone) if self.timezone else UTC

    @property
    def way(self) -> str:
        """The printable form of the target: its kind and, for a URL, its scheme or its host."""
        if self.webhook:
            return f"webhook {self.webhook.split('/')[2].rpartition('@')[2]}"
        if self.service:
            return f"service {self.service.partition(':')[0]}"
        return f"event {self.event}" if self.event else "command"

    def takes_run(self, url: str) -> bool:
        """Return True if a run may name this URL: it has the scheme, host and port of the target's webhook."""
        return "run" in self.on and urlsplit(self.webhook)[:2] == urlsplit(url)[:2]

    def at(self, address: str) -> Self:
        """Return the target with the address that a run named, or the same target if the address is empty."""
        return self.model_copy(update={"webhook": address}) if address else self

    def wants(self, kind: str, task: str, channel: str) -> bool:
        """Return True if the target gets results of this kind, from this task and channel."""
        fits = (not self.tasks or task in self.tasks) and (not self.channels or channel in self.channels)
        return kind in self.on and fits

    def due(self, kind: str, now: datetime) -> tuple[datetime, bool]:
        """Return the time to send a delivery that is ready now, and True if it waits for the daily digest.

        A question never waits for the digest. Nothing is sent in quiet hours.
        """
        gathers = bool(self.digest) and kind in {"success", "failure"}
        at = _next(time.fromisoformat(self.digest), now, self.zone) if gathers else now
        return self.after_quiet(at), gathers

    def is_early_for(self, fire: datetime) -> bool:
        """Return True if a digest is so soon after a fire that the answer may miss it."""
        at = time.fromisoformat(self.digest or "00:00")
        return bool(self.digest) and _next(at, fire - _INSTANT, self.zone) - fire < _ANSWERS_WITHIN

    def after_quiet(self, at: datetime) -> datetime:
        """Return `at`, or the end of the quiet hours that it is in."""
        if not self.quiet:
            return at
        begin, end = map(time.fromisoformat, self.quiet.split("-"))
        local = at.astimezone(self.zone).time()
        inside = begin <= local < end if begin < end else local >= begin or local < end
        return _next(end, at, self.zone) if inside else at


def _next(moment: time, now: datetime, zone: tzinfo) -> datetime:
    """Return the first instant after `now` at which clocks in the zone show the time of day."""
    local = now.astimezone(zone)
    days = (datetime.combine(local.date() + timedelta(days=days), moment, zone) for days in (0, 1, 2))
    return next(at.astimezone(UTC) for at in days if at.astimezone(UTC) > now)


Targets = Mapping[str, Target]
FILE = Entries[Target]("delivery", "target", "turnkeeper deliver", TypeAdapter(dict[Name, Target]))


def add(home: Home, name: str, target: Target) -> None:
    """Add a target. Raises Conflict if the name is taken, or InvalidInput if it is not a valid name."""
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise InvalidInput("is not a name: use a-z, 0-9 and -, at most 32 characters", where=name[:60]) from error
    FILE.add(home, name, target)


def replace(home: Home, name: str, target: Target) -> None:
    with FILE.changing(home) as known:
        known[name] = target


def of_run(known: Targets, url: str) -> str:
    """Return the name of the target whose key signs the webhook of a run. Empty if no target accepts it."""
    return next((name for name, target in known.items() if target.takes_run(url)), "")


def check_run(home: Home, url: str) -> str:
    """Return the name of the target that takes the webhook of a run. Raises InvalidInput, or Denied by the settings."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:
        fits = False
    if not fits:
        raise InvalidInput("is not an http or https URL", where="webhook")
    if not load_settings(home).delivery.enabled:
        hint = "set enabled = true below [delivery] in config.toml, then: turnkeeper up"
        raise Denied("nothing is delivered", where="webhook", hint=hint)
    if not (name := of_run(FILE.read(home), url)):
        hint = f"turnkeeper deliver add NAME --on run --webhook {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise Denied("no target takes runs at this host", where="webhook", hint=hint)
    return name


def new_secret(entropy: Entropy) -> str:
    """Return a new key for the signatures of a webhook."""
    return _PREFIX + base64.b64encode(bytes.fromhex(entropy.hex(2 * _SECRET_BYTES))).decode()


def secret_bytes(secret: str) -> bytes:
    """Return the bytes of a key. Raises InvalidInput if the key is not base64 of 24 to 64 bytes."""
    try:
        found = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except ValueError:
        found = b""
    if not 24 <= len(found) <= 64:
        raise InvalidInput(f"is not {_PREFIX} and the base64 of 24 to 64 bytes", where="secret")
    return found
