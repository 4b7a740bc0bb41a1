"""What `turnkeeper status` and `turnkeeper doctor` find."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that a person should know.

    Attributes:
        process: whose; empty for the whole constellation.
        what: what was found.
        fix: what to do; empty where nothing is to be done.
        degraded: the constellation is not whole as long as it stands.
    """

    process: str
    what: str
    fix: str = ""
    degraded: bool = True

    def __str__(self) -> str:
        """Return one line."""
        line = f"{self.process}: {self.what}" if self.process else self.what
        return f"{line}; {self.fix}" if self.fix else line


UNREAD_S = 60.0  # after which an envelope that nobody took is worth a line


def unread(agent: str, count: int, since: str) -> Finding:
    """Return what there is to say of an inbox in which envelopes wait that nobody reads."""
    what = f"{count} {'envelope waits' if count == 1 else 'envelopes wait'} for {agent} since {since}"
    fix = f"turnkeeper inbox watch {agent} --tmux SESSION, or: turnkeeper inbox drain {agent}"
    return Finding(process="", what=f"{what}, and nobody reads its inbox", fix=fix, degraded=False)
