"""What can go wrong, in terms a caller can act on.

    TurnkeeperError            exit  who erred
    ├── InvalidInput             2   the caller: a value that cannot be taken
    ├── NotFound                 3   the caller: no such thing
    ├── Conflict                 4   the caller: it exists already, or its state forbids this
    ├── Unreachable              5   a peer: the daemon does not answer
    ├── Degraded                 6   the constellation: it runs, but not completely
    ├── Denied                   7   nobody: the author refused it or has not decided yet
    ├── Exhausted                1   what there is: full disk, full inbox, no descriptors, the day's tokens
    └── Corrupt                  1   a file: quarantined whole, or the store refuses to start

Each carries fields, not prose: what is wrong, where, and what to do about it. The command line prints them in one
line and exits with the number above; the wire maps them to status codes (`turnkeeper/rpc/errors.py`).
"""

from typing import ClassVar

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_UNREACHABLE = 5
EXIT_DEGRADED = 6
EXIT_DENIED = 7
EXIT_INTERRUPTED = 130


class TurnkeeperError(Exception):
    """Base of all errors that a person is meant to read.

    Attributes:
        what: what is wrong, without a full stop.
        where: the file, field or name it was found at; empty where `what` says it.
        hint: what to do; empty where nothing is to be done.
    """

    exit_code: ClassVar[int] = EXIT_FAILURE

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return one line: where, what, what to do."""
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.hint}" if self.hint else line


class InvalidInput(TurnkeeperError):
    """A value that cannot be taken; `where` names the field."""

    exit_code = EXIT_USAGE


class NotFound(TurnkeeperError):
    """No such task, turn, channel, page or file."""

    exit_code = EXIT_NOT_FOUND


class Conflict(TurnkeeperError):
    """It exists already, or its present state forbids this."""

    exit_code = EXIT_CONFLICT


class Unreachable(TurnkeeperError):
    """A daemon or a database server does not answer; whether it did anything is unknown."""

    exit_code = EXIT_UNREACHABLE


class Degraded(TurnkeeperError):
    """The constellation runs, but not completely."""

    exit_code = EXIT_DEGRADED


class Denied(TurnkeeperError):
    """The author refused it, or has not decided yet."""

    exit_code = EXIT_DENIED


class Exhausted(TurnkeeperError):
    """A resource is used up: disk, inbox quota, file descriptors, a day's tokens. Nothing was written or asked."""


class Corrupt(TurnkeeperError):
    """A file that cannot be trusted; `where` names it."""
