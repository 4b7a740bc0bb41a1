"""A program in a terminal that asks for bracketed paste and keeps what it is given, byte for byte.

Run as `python -m tests.integration.bus.pane_reader FILE`.
"""

import os
import sys
import tty
from pathlib import Path


def main() -> None:
    kept = Path(sys.argv[1])
    tty.setraw(0)
    os.write(1, b"\x1b[?2004hready")
    with kept.open("ab", buffering=0) as file:
        while data := os.read(0, 65536):
            file.write(data)


if __name__ == "__main__":
    main()
