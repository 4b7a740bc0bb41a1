"""A line typed at the foot of a terminal that prints meanwhile: bytes in, what is typed and finished lines out."""

import codecs
import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_LINE = 4000
_ESCAPE = "\x1b"
_FINAL = range(0x40, 0x7F)  # ends the sequence that a key sends


class Typed:
    """What is being typed. It knows no terminal: `text` is for others to show."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False  # Ctrl-D on an empty line
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._sequence = ""

    def feed(self, data: bytes) -> list[str]:
        r"""Take what came from the keyboard; return the lines that it finished.

        >>> typed = Typed()
        >>> typed.feed(b"ab\x7f\x1b[Ac\rd"), typed.text
        (['ac'], 'd')
        """
        lines: list[str] = []
        for character in self._decode(data):
            if self._in_sequence(character):
                continue
            if character in "\r\n":
                lines.append(self.text)
                self.text = ""
            else:
                self._edit(character)
        return lines

    def _in_sequence(self, character: str) -> bool:
        """Leave out what arrows and other keys send."""
        if character == _ESCAPE:
            self._sequence = character
        elif self._sequence == _ESCAPE and character in "[O":
            self._sequence += character
        elif len(self._sequence) > 1:
            self._sequence = "" if ord(character) in _FINAL else self._sequence
        elif self._sequence:
            self._sequence = ""  # a key together with Alt
        else:
            return False
        return True

    def _edit(self, character: str) -> None:
        if character in "\x7f\x08":
            self.text = self.text[:-1]
        elif character == "\x15":
            self.text = ""
        elif character == "\x17":
            kept = self.text.rstrip()
            self.text = kept[: len(kept) - len(kept.split(" ")[-1])] if kept else ""
        elif character == "\x04":
            self.ended = not self.text
        elif character == "\t" or character.isprintable():
            self.text = (self.text + character.replace("\t", " "))[:LONGEST_LINE]


@contextmanager
def key_by_key(descriptor: int) -> Iterator[None]:
    """Have a terminal pass on each key at once and print none of them; as it was, afterwards. Ctrl-C stays Ctrl-C."""
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_keys(descriptor: int) -> bytes:
    """Return what has been typed; nothing when there is no keyboard any more."""
    try:
        return os.read(descriptor, LONGEST_LINE)
    except OSError:
        return b""
