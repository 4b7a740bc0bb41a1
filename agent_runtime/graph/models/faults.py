"""What a failed model call means: try again, and when, or give up, and what to do about it. Pure.

LangChain's providers raise one family of errors for the conditions that all of them know, and keep the HTTP response;
those two are all that is read here, so that no provider has to be installed.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from langchain_core.exceptions import ContextOverflowError, ModelConnectionError, ModelError, ModelTimeoutError

from agent_runtime.graph.models.secrets import redact
from agent_runtime.model.words import shortened
from turnkeeper.errors import TurnkeeperError

MOST_TRIES = 5
FIRST_WAIT_S = 1.0  # doubled at each further try
LONGEST_WAIT_S = 30.0
LONGEST_ASKED_S = 60.0  # a server that asks for more is given up: the turn's thread would stand still
LONGEST_QUOTE = 200
_PASSING = frozenset({408, 409, 425, 429})
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_CHECK = "check [model] in config.toml"
_KEYS = "put a valid key into the environment or into .env in the home, then restart agent-runtime"
_REFUSALS = {
    401: ("refused the key (401)", _KEYS),
    402: ("wants to be paid (402)", "see to the account's credit"),
    403: ("does not let this key use the model (403)", _KEYS),
    404: ("knows no such model or address (404)", "check name and base_url under [model] in config.toml"),
}


class ModelFailed(TurnkeeperError):
    """A model gave no answer that can be used.

    Attributes:
        tokens: what its tries read and wrote, as far as the server told.
    """

    tokens: tuple[int, int] = (0, 0)


class Unusable(Exception):
    """An answer arrived that must not be believed.

    Attributes:
        reason: one word for the event log.
        again: another try may bring a better one.
    """

    def __init__(self, what: str, *, reason: str, again: bool = True) -> None:
        super().__init__(what)
        self.reason = reason
        self.again = again


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failed call, understood.

    Attributes:
        reason: one word for the event log: the HTTP status where there is one.
        what: the end of a sentence that begins with the model; it may quote the server.
        hint: what to do; empty for the general advice.
        again: worth another try.
        asked_s: how long the server asks to wait; None if it does not say.
    """

    reason: str
    what: str
    hint: str = ""
    again: bool = False
    asked_s: float | None = None


def read_fault(error: Exception, now: datetime, secrets: Collection[str] = ()) -> Fault:
    """Return what an error that a model call raised means.

    Args:
        error: any.
        now: by the runtime's clock, for a server that names an instant.
        secrets: never quoted; hidden before a long text is cut, as no one would know the rest of a key for one.
    """
    if isinstance(error, Unusable):
        return Fault(reason=error.reason, what=str(error), again=error.again)
    if isinstance(error, ContextOverflowError):
        hint = "go on in a new thread: agent-runtime send CHANNEL TEXT --new"
        return Fault(reason="overflow", what="takes no conversation as long as this one", hint=hint)
    status = getattr(error, "status_code", None)
    quote = _quote(error, secrets)
    return _read_status(error, status, now, quote) if isinstance(status, int) else _read_kind(error, quote)


def wait_before(attempt: int, fault: Fault, jitter: float) -> float | None:
    """Return how many seconds to wait before try number `attempt` + 1; None to give up.

    Args:
        attempt: tries made so far.
        fault: how the last one failed.
        jitter: between 0 and 1; spreads the waits of many turns.

    >>> [wait_before(tries, Fault(reason="x", what="x", again=True), 1.0) for tries in (1, 2, 3, 4, 5)]
    [1.0, 2.0, 4.0, 8.0, None]
    >>> wait_before(1, Fault(reason="429", what="x", again=True, asked_s=7.0), 0.0)
    7.0
    """
    if not fault.again or attempt >= MOST_TRIES:
        return None
    if fault.asked_s is not None:
        return fault.asked_s if fault.asked_s <= LONGEST_ASKED_S else None
    return float(min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S) * (0.5 + jitter / 2))


def _read_kind(error: Exception, quote: str) -> Fault:
    """Read an error that came without a status; the first kind that fits counts."""
    spent = hasattr(error, "body") and _is_spent(error)
    kinds: tuple[tuple[Any, Fault], ...] = (
        (TimeoutError | ModelTimeoutError, Fault(reason="timeout", what="did not answer in time", again=True)),
        (
            ModelConnectionError | ConnectionError,
            Fault(reason="connection", what="cannot be reached or broke off the connection", again=True),
        ),
        (ModelError, Fault(reason="model", what=f"failed: {quote}", again=bool(getattr(error, "is_retryable", False)))),
        (
            ValueError | KeyError | TypeError,
            Fault(reason="unreadable", what=f"sent what cannot be read: {quote}", again=True),
        ),
    )
    unknown = Fault(reason="unknown", what=f"failed: {type(error).__name__}: {quote}")
    if hasattr(error, "body"):  # a server says in the middle of a stream what went wrong: there is no status then
        unknown = Fault(reason="broken", what=f"broke off with: {quote}", again=not spent)
    return next((fault for kind, fault in kinds if isinstance(error, kind)), unknown)


def _read_status(error: Exception, status: int, now: datetime, quote: str) -> Fault:
    reason = str(status)
    if _is_spent(error):
        return Fault(reason=reason, what=f"has no quota left ({status})", hint="see to the account's credit")
    if status in _PASSING or status >= 500:
        asked = _asked(error, now)
        wait = f", and asks to wait {asked:.0f} s" if asked is not None and asked > LONGEST_ASKED_S else ""
        what = "limits how often it is asked (429)" if status == 429 else f"is in trouble ({status})"
        return Fault(reason=reason, what=what + wait, again=True, asked_s=asked)
    what, hint = _REFUSALS.get(status, (f"refused the request ({status}): {quote}", _CHECK))
    return Fault(reason=reason, what=what, hint=hint)


def _is_spent(error: Exception) -> bool:
    """Tell a rate limit, which passes, from an account without credit, which does not."""
    return getattr(error, "code", None) in _SPENT or getattr(error, "type", None) in _SPENT


def _asked(error: Exception, now: datetime) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    text = str(headers.get("retry-after") or "")
    try:
        seconds = float(text)
    except ValueError:
        seconds = _until(text, now)
    return seconds if seconds >= 0 else None  # also for one that is not a number


def _until(text: str, now: datetime) -> float:
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError):
        return -1.0


def _quote(error: Exception, secrets: Collection[str]) -> str:
    said = getattr(error, "message", None)
    return shortened(" ".join(redact(said if isinstance(said, str) else str(error), secrets).split()), LONGEST_QUOTE)
