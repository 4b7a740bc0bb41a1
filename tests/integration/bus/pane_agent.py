"""A program in a terminal that has a prompt, as an agent's has: it reads single keys and asks for bracketed paste.

Run as `python .../aider FILE [--exit-after BYTES] [--busy-while FILE]`; what it reads is kept in FILE, byte for byte. It
submits its line at Enter, forgets it at Ctrl-U, and ends after so many bytes, wherever that is.
"""

import argparse
import os
import select
import sys
import termios
import tty
from pathlib import Path

ENTER, FORGET = b"\r", b"\x15"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kept", type=Path)
    parser.add_argument("--exit-after", type=int, default=1 << 40)
    parser.add_argument("--busy-while", type=Path)
    given = parser.parse_args()
    before = termios.tcgetattr(0)
    tty.setraw(0)
    os.write(1, b"\x1b[?2004h\x1b[2J\x1b[H")
    try:
        _serve(given.kept, given.exit_after, given.busy_while)
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
        os.write(1, b"\x1b[?2004l")


def _serve(kept: Path, left: int, busy: Path | None) -> None:
    line = b""
    with kept.open("ab", buffering=0) as file:
        while left > 0:
            if busy is not None and busy.exists():
                os.write(1, b"\r\x1b[KWorking (esc to interrupt)")
                select.select([], [], [], 0.02)
                continue
            shown = line.replace(b"\x1b[200~", b"").replace(b"\x1b[201~", b"").decode(errors="replace")[-200:]
            os.write(1, b"\r\x1b[J> " + " ".join(shown.split()).encode())
            if not select.select([0], [], [], 0.02)[0]:
                continue
            data = os.read(0, min(left, 1))
            left -= len(data)
            file.write(data)
            line = b"" if data in {ENTER, FORGET} else line + data


if __name__ == "__main__":
    sys.exit(main())
