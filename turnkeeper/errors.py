"""The errors of the program, in terms that help a caller to act.

    TurnkeeperError            exit  cause
    ├── InvalidInput             2   the caller: an invalid value
    ├── NotFound                 3   the caller: no such thing
    ├── Conflict                 4   the caller: it exists already, or its state forbids this
    ├── Unreachable              5   a peer: the daemon does not answer
    ├── Degraded                 6   the constellation: it runs, but not completely
    ├── Denied                   7   the author: refused the request, or has not decided yet
    ├── Exhausted                1   a resource: full inbox, the day's tokens
    │   └── MachineTrouble       1   the machine: full disk, no descriptors, a disk that fails, no right to write
    │       └── ServerTrouble    5   the database server: it ended the connection, restarts, has no room
    ├── NotInstalled             1   the installation: the part that answers the request was removed
    └── Corrupt                  1   a file: quarantined whole, or the store refuses to start

Each error has fields: the fault, its place, and the remedy. The command line prints them in one line and exits with the
number above. The RPC package converts them to status codes (`turnkeeper/rpc/errors.py`).
"""

import contextlib
import errno
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

BUDGET = "budget: "  # the beginning of the reason for a pause by a task's budget
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_UNREACHABLE = 5
EXIT_DEGRADED = 6
EXIT_DENIED = 7
EXIT_INTERRUPTED = 130


class TurnkeeperError(Exception):
    """The base of all errors that are meant for a person.

    Attributes:
        what: the fault, without a full stop.
        where: the file, field or name with the fault; empty if `what` names it.
        hint: the remedy; empty if none is needed.
    """

    exit_code: ClassVar[int] = EXIT_FAILURE

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return one line: place, fault, remedy."""
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.hint}" if self.hint else line


class InvalidInput(TurnkeeperError):
    """An invalid value; `where` names the field."""

    exit_code = EXIT_USAGE


class NotFound(TurnkeeperError):
    """The error that a task, turn, channel, page or file does not exist."""

    exit_code = EXIT_NOT_FOUND


class Conflict(TurnkeeperError):
    """The error that an object already exists, or that its present state forbids the request."""

    exit_code = EXIT_CONFLICT


class Unreachable(TurnkeeperError):
    """The error that a daemon or a database server does not answer. It may or may not have acted."""

    exit_code = EXIT_UNREACHABLE


class Degraded(TurnkeeperError):
    """The error that the constellation runs, but not completely."""

    exit_code = EXIT_DEGRADED


class Denied(TurnkeeperError):
    """The error that the author refused a request, or has not decided yet."""

    exit_code = EXIT_DENIED


class NotInstalled(TurnkeeperError):
    """The error that the surface which answers a request was removed from the program."""


class Exhausted(TurnkeeperError):
    """A resource is used up: disk, inbox quota, file descriptors, a day's tokens. Nothing was written or requested."""


class MachineTrouble(Exhausted):
    """The error that the machine cannot read or write at the moment.

    The turn, the task or the file itself may be valid. The caller waits and retries, because the fault may disappear by
    itself, unless a permission is `missing`.
    """

    missing = False


class ServerTrouble(MachineTrouble):
    """The database server cannot be reached or accepts nothing now. A starting daemon ends and is restarted."""

    exit_code = EXIT_UNREACHABLE


_PASSING = {
    errno.ENOSPC: "free room on its disk",
    errno.EDQUOT: "free room in your quota",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOMEM: "free memory",
    errno.EIO: "check its disk",
    errno.EROFS: "make its file system writable again",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.ENOLCK: "free locks of its file system",
    **dict.fromkeys((errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.ENODEV), "check its disk"),
    errno.ESTALE: "mount its file system again",
}
_DENIED = {errno.EACCES: "make it yours to write", errno.EPERM: "make it yours to write"}
# SQLite's primary result codes. A failed read of a page is reported as a malformed file (11) although the file is
# intact.
_OF_SQLITE = {
    3: "make it yours to write",
    5: "end the program that holds it",
    7: "free memory",
    8: "make it writable",
    10: "check its disk",
    11: "check its disk, and the file with: turnkeeper doctor",
    13: "free room on its disk",
    14: "free descriptors, or make its folder writable",
}
_CORRUPT = 11  # sqlite3.SQLITE_CORRUPT
_NOT_OWNER = "42501"  # a fault that does not disappear by itself
# Prefixes of PostgreSQL's error codes for faults of the server or of the connection.
_OF_SERVER = {
    "08": "wait until the database answers",
    "53": "give the database room: disk, memory or connections",
    "57": "wait until the database answers",
    "58": "check the database's disk",
    "25P": "wait until the database answers",  # a transaction took too long
    "55P03": "wait until the database answers",  # a statement waited too long for a lock
    _NOT_OWNER: "make its role the owner of the database (ALTER DATABASE … OWNER TO …)",
    "25006": "let the database be written to, or name its primary",
}


def machine_trouble(error: BaseException, where: str = "", *, ours: bool = False) -> MachineTrouble | None:
    """Return the machine fault that caused an error. Return None if the cause is a different one.

    Args:
        error: an OSError, an error of a database driver, or an error caused by one of these.
        where: the file; empty to use the name in the error.
        ours: True for a file of the home: then a missing permission also counts as a machine fault.
    """
    for one in _causes(error):
        if isinstance(one, MachineTrouble):
            return one
        code = getattr(one, "sqlite_errorcode", None)
        if isinstance(code, int) and (hint := _OF_SQLITE.get(code & 0xFF)):
            # SQLite reports a failed disk read as a malformed page. Real damage would already have ended the process.
            said = "the disk returned a page that is not readable" if code & 0xFF == _CORRUPT else str(one)
            return _trouble(said, where, hint)
        if hint := _of_server(one):
            missing = hint == _OF_SERVER[_NOT_OWNER]
            said = str(one).partition("\n")[0]
            return _trouble(said, where, hint, kind=MachineTrouble if missing else ServerTrouble, missing=missing)
        if isinstance(one, OSError) and (hint := (_PASSING | (_DENIED if ours else {})).get(one.errno or 0)):
            named = where or str(one.filename or "")
            return _trouble(one.strerror or str(one), named, hint, missing=one.errno in _DENIED)
    return None


def _trouble(
    said: str, where: str, hint: str, *, kind: type[MachineTrouble] = MachineTrouble, missing: bool = False
) -> MachineTrouble:
    trouble = kind(f"cannot be read or written: {said}", where=where, hint=f"{hint}, then try again")
    trouble.missing = missing
    return trouble


def _of_server(error: BaseException) -> str:
    """Return the remedy for an error of PostgreSQL's driver. Return an empty string if the statement is at fault."""
    state = getattr(error, "sqlstate", "")
    if state is None:  # the error is not from the server: the connection broke
        kinds = {kind.__name__ for kind in type(error).__mro__}  # a timeout's class is derived from it
        return _OF_SERVER["08"] if "OperationalError" in kinds else ""
    return next((_OF_SERVER[part] for part in (state, state[:3], state[:2]) if part in _OF_SERVER), "")


def unopened(error: BaseException, where: str, what: str) -> TurnkeeperError:
    """Return the error for a store that could not be opened: the machine is in trouble, or the file is invalid."""
    if isinstance(error, Corrupt):
        return error
    trouble = machine_trouble(error, where, ours=True)
    return trouble or Corrupt(f"cannot be read as {what}: {error}", where=where)


def exit_code_of(serve: Callable[[], None]) -> int:
    """Run a daemon to its end. Return its exit code. Write an error that is meant for people to stderr, in one line.

    Return EXIT_UNREACHABLE if a machine fault that may disappear by itself ended the daemon.
    """
    try:
        serve()
    except Exception as error:
        members = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        first = members[0]
        found = first if isinstance(first, TurnkeeperError) else machine_trouble(first, ours=True)
        if found is None and not isinstance(error, ExceptionGroup):
            raise
        with contextlib.suppress(OSError):  # stderr may be a file on the same full disk
            sys.stderr.write(f"error: {found or first}\n")
            sys.stderr.flush()
        if isinstance(found, MachineTrouble) and not found.missing:
            return EXIT_UNREACHABLE
        return found.exit_code if found else EXIT_FAILURE
    return 0


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, including the members of a group and the driver's error in SQLAlchemy's error."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, TurnkeeperError):  # the code that raised it has already classified its cause
            continue
        members: Any = [*getattr(one, "exceptions", ()), *filter(None, [getattr(one, "orig", None)])]
        before = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        left += [*members, *([before] if before is not None else [])]


class Corrupt(TurnkeeperError):
    """The error that a file cannot be trusted; `where` names the file."""


def meant(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: a similar known name, or else all known names.

    >>> meant("reserch", ["agent", "research"]), meant("x", ["agent"])
    ('did you mean research?', 'use one of: agent')
    """
    spelled = {one.lower(): one for one in known}
    # Import it here, because few commands handle an unknown name.
    close = importlib.import_module("difflib").get_close_matches(name.lower()[:80], list(spelled), n=1)
    listed = f"use one of: {', '.join(sorted(spelled.values()))}" if spelled else "there are none"
    return f"did you mean {spelled[close[0]]}?" if close else listed


def misspelt(name: str, known: Iterable[str]) -> str:
    """Return the known name that a new name may be a misspelling of. Return an empty string if there is none.

    Names whose digits differ are different names.

    >>> misspelt("genral", ["general", "news-1"]), misspelt("news-2", ["general", "news-1"])
    ('general', '')
    """
    digits = [letter for letter in name if letter.isdigit()]
    alike = {one.lower(): one for one in known if [letter for letter in one if letter.isdigit()] == digits}
    close = importlib.import_module("difflib").get_close_matches(name.lower()[:80], list(alike), n=1, cutoff=0.8)
    return alike[close[0]] if close else ""


def the_one(known: Sequence[str], given: str, what: str, *, see: str) -> str:
    """Return the name or id that is equal to `given` or begins with it.

    Raises:
        NotFound: no name does; the error suggests a similar name, or else gives the hint `see`.
        Conflict: several names do.
    """
    named = [given] if given in known else [one for one in known if given and one.startswith(given)]
    if not named:
        hint = meant(given, known)
        raise NotFound(f"no {what} {given[:80]!r}", hint=hint if hint.startswith("did you mean") else see)
    if len(named) > 1:
        what = f"{what.removesuffix('y')}ies" if what.endswith("y") else f"{what}s"
        raise Conflict(f"{len(named)} {what} begin with {given!r}: {', '.join(named[:4])}", hint="give more characters")
    return named[0]
