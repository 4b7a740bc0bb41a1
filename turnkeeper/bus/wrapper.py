"""The wrapper that a model is shown around a message, and the check that no message carries one itself.

A message that could close the wrapper and open another would speak in somebody else's name.
"""

import re
import unicodedata
from html import escape

from turnkeeper.errors import InvalidInput

# A slash may be one of its look-alikes, which NFKC leaves as they are; a prefix may stand before the name.
_TOKEN = re.compile(r"<\s*[/\\\u2044\u2215\u29f8]?\s*(?:[\w.-]+:)?channel\b", re.IGNORECASE)
# Shown as nothing: format, control, combining marks, unassigned (among them the reserved default-ignorables).
_UNSEEN_CATEGORIES = frozenset({"Cf", "Cc", "Cn", "Co", "Mn", "Me"})
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")  # Hangul fillers are letters that show as nothing
_LABEL_FORBIDDEN = frozenset('<>"')
LONGEST_LABEL = 255


def check_text(text: str, *, where: str = "text") -> None:
    """Raise InvalidInput for a wrapper token, however it is spelled, or a character that has no UTF-8 form.

    Width, case, and characters that show as nothing make no difference.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput("contains a lone surrogate", where=where) from error
    folded = text if text.isascii() else unicodedata.normalize("NFKC", text)
    if "<" in folded and (_TOKEN.search(folded) or _TOKEN.search(_seen(folded))):
        hint = "write it without the bracket: what follows it would speak in somebody else's name"
        raise InvalidInput("contains a <channel …> wrapper token", where=where, hint=hint)


def check_label(value: str, *, where: str) -> None:
    """Raise InvalidInput unless `value` can stand in an attribute: short, in plain sight, no markup. Empty is one."""
    if len(value) > LONGEST_LABEL:
        raise InvalidInput(f"is longer than {LONGEST_LABEL} characters", where=where)
    for character in value:
        if character in _LABEL_FORBIDDEN or not (character.isprintable() or character == " "):
            raise InvalidInput(f"contains {character!a}", where=where)


def wrapped(*, sender: str, kind: str, thread: str, text: str) -> str:
    """Return what a model is shown of a message whose fields were checked.

    >>> wrapped(sender="agent1", kind="message", thread="t1", text="done")
    '<channel source="agent" from="agent1" kind="message" thread="t1">done</channel>'
    """
    check_text(text)
    named = f'from="{escape(sender)}" kind="{escape(kind)}" thread="{escape(thread)}"'
    return f'<channel source="agent" {named}>{text}</channel>'


def _seen(text: str) -> str:
    return "".join(
        character
        for character in text
        if character.isspace() or not (unicodedata.category(character) in _UNSEEN_CATEGORIES or character in _FILLERS)
    )
