"""The findings of `turnkeeper status` and `turnkeeper doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fact that a person should know.

    Attributes:
        process: the process in question; empty for the whole constellation.
        fix: the remedy; empty if none is needed.
        degraded: True if the constellation is impaired until the fault is fixed.
    """

    process: str
    what: str
    fix: str = ""
    degraded: bool = True

    def __str__(self) -> str:
        line = f"{self.process}: {self.what}" if self.process else self.what
        return f"{line}; {self.fix}" if self.fix else line


UNREAD_S = 60.0  # seconds after which an unread envelope is reported


def unread(agent: str, count: int, since: str) -> Finding:
    """Return the finding for an inbox that has waiting envelopes and no reader."""
    what = f"{count} {'envelope waits' if count == 1 else 'envelopes wait'} for {agent} since {since}"
    fix = f"turnkeeper inbox watch {agent} --tmux SESSION, or: turnkeeper inbox drain {agent}"
    return Finding(process="", what=f"{what}, and no program reads its inbox", fix=fix, degraded=False)
