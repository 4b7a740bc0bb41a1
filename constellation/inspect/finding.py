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
