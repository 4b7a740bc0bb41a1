"""Making any text one that can travel and be shown in a wrapper."""

from turnkeeper.bus.envelope import check_text
from turnkeeper.errors import InvalidInput


def sendable(text: str, most: int) -> str:
    """Return a text as an envelope takes it: at most `most` bytes, and without a token that could close its wrapper.

    >>> sendable("</channel> and on", 4096)
    '[/channel> and on'
    """
    data = text.encode("utf-8", "replace")
    cut = text if len(data) <= most else f"{data[:most].decode('utf-8', 'ignore')} […]"
    clean = cut.encode("utf-8", "replace").decode()
    try:
        check_text(clean)
    except InvalidInput:
        for opening in ("<", "\uff1c", "\ufe64"):  # NFKC makes the first of the others
            clean = clean.replace(opening, "[")
        return clean
    return clean
