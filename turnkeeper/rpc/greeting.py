"""What the stream of turn events says of itself before its first event, in its initial metadata.

A store that was replaced, or put back from an older copy, may have no event to tell by: its follower must know at once,
and ask about every fire that is open.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_INCARNATION, _AFTER = "turnkeeper-incarnation", "turnkeeper-after-sequence"
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """Which store a stream reads, and the sequence behind which it starts: 0 where the asker's means nothing there."""

    incarnation: str
    after: int

    def to_metadata(self) -> Metadata:
        """Return it as metadata of a call."""
        return ((_INCARNATION, self.incarnation), (_AFTER, str(self.after)))


def read_greeting(metadata: Iterable[tuple[str, str | bytes]]) -> Greeting | None:
    """Return the greeting among a call's metadata; None where the server does not greet.

    >>> read_greeting(Greeting(incarnation="a", after=3).to_metadata())
    Greeting(incarnation='a', after=3)
    >>> read_greeting((("turnkeeper-incarnation", "a"), ("turnkeeper-after-sequence", "x")))
    """
    told = {key: value for key, value in metadata if isinstance(value, str)}
    incarnation, after = told.get(_INCARNATION, ""), told.get(_AFTER, "")
    if not incarnation or not (after.isascii() and after.isdecimal()):
        return None
    return Greeting(incarnation=incarnation, after=int(after))
