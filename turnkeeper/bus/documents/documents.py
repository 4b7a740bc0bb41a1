"""Text files in a prompt.

Below the prompt, each file is one line: `Document: ` and a JSON object with the name, bytes and text. The content is
copied when the command runs, and is stored with the prompt. If the prompt is deleted or erased, the copy is deleted
too. A line of JSON without markup is only data: it opens no wrapper and contains no variable of prompts, and no line of
a file becomes a line of the prompt.
"""

import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnkeeper.bus.envelope import check_text
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, Denied, InvalidInput, NotFound, machine_trouble

LARGEST = 64 << 10  # largest size of a file, in bytes
MOST = 8  # most files
LONGEST = 192 << 10  # largest size of all lines, in bytes
LONGEST_NAME = 128
NONE = ["none"]
_BEGIN = "Document: "
_LINE = re.compile(rf'^{_BEGIN}(\{{"name": .*\}})$', re.MULTILINE)
_UNSEEN = re.compile(r"[^ -~]")


def with_documents(home: Home, prompt: str | None, files: Sequence[str] = (), before: str = "") -> str:
    """Return a prompt with files below it. If `prompt` is None, keep the text of `before`.

    Files in `prompt` replace the files in `before`. Given files replace both; `--file none` removes all files.

    Raises:
        NotFound, InvalidInput: a file does not exist, or is not a text of at most 64 KiB.
        Denied: a file belongs to the home.
        Conflict: a file changed while it was read.
    """
    text, lines = split(before)
    if prompt is not None:
        text, own = split(prompt)
        lines = own or lines
    if (number := len(files or lines)) > MOST:
        raise InvalidInput(f"{number} files; the limit is {MOST}", where="--file")
    if files:
        lines = [] if list(files) == NONE else [_line(home, Path(file)) for file in files]
    if sum(map(len, (line.encode() for line in lines))) > LONGEST:
        raise InvalidInput(f"is more than {LONGEST >> 10} KiB of files in all", where="--file")
    return "\n\n".join(filter(None, [text.rstrip("\n") if lines else text, "\n".join(lines)]))


def split(prompt: str) -> tuple[str, list[str]]:
    r"""Return the text of a prompt, and the lines of its files.

    >>> split('Sum up.\n\nDocument: {"name": "a.txt", "bytes": 2, "text": "hi"}')
    ('Sum up.', ['Document: {"name": "a.txt", "bytes": 2, "text": "hi"}'])
    """
    lines = [found[0] for found in _LINE.finditer(prompt) if _read(found)]
    kept = [line for line in prompt.split("\n") if line not in lines]
    return ("\n".join(kept).rstrip("\n") if lines else prompt), lines


def documents_in(prompt: str) -> list[dict[str, Any]]:
    """Return the name, bytes and text of each file in a prompt."""
    return [said for found in _LINE.finditer(prompt) if (said := _read(found))]


def in_words(prompt: str) -> str:
    r"""Return a prompt for people, with the lines of its files indented. Any writer of a prompt can write a file.

    >>> in_words('Sum up.\n\nDocument: {"name": "a.txt", "bytes": 5, "text": "hi\\nho"}')
    'Sum up.\n\nDocument: a.txt, 5 bytes\n    hi\n    ho'
    """
    return _LINE.sub(lambda found: _written(_read(found)) or found[0], prompt)


def _written(said: dict[str, Any]) -> str:
    lines = [f"{_BEGIN}{said['name']}, {said['bytes']:,} bytes", *said["text"].splitlines()] if said else []
    return "\n    ".join(lines)


def _read(found: re.Match[str]) -> dict[str, Any]:
    try:
        said = json.loads(found[1])
    except (ValueError, RecursionError):
        return {}
    kinds = {"name": str, "bytes": int, "text": str}
    if {key: type(value) for key, value in said.items()} != kinds or not said["name"].isprintable():
        return {}
    return said if said["bytes"] == len(said["text"].encode("utf-8", "surrogatepass")) else {}


def _line(home: Home, path: Path) -> str:
    if not path.name.isprintable() or len(path.name) > LONGEST_NAME:
        raise InvalidInput(f"{path.name[:40]!a} is not a printable name of at most {LONGEST_NAME}", where="--file")
    data = _bytes_of(home, path)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"is not UTF-8 at byte {error.start}: only text can be given", where=str(path)) from error
    if "\0" in text:
        raise InvalidInput("is not a text: it has null bytes", where=str(path))
    return f"{_BEGIN}{_plain({'name': path.name, 'bytes': len(data), 'text': text})}"


def _plain(said: dict[str, Any]) -> str:
    r"""Return an object as a line of JSON in which no reader can find a wrapper or a variable.

    >>> _plain({"text": "<channel> {{ date }}\nüber\u2028"})
    '{"text": "\\u003cchannel> {\\u007b date }}\\nüber\\u2028"}'
    """
    text = _UNSEEN.sub(_shown, json.dumps(said, ensure_ascii=False).replace("<", "\\u003c"))
    try:
        check_text(text)
    except InvalidInput:  # such as a bracket of a different width
        text = json.dumps(said).replace("<", "\\u003c")
    return re.sub(r"(?<=\{)\{", r"\\u007b", text)


def _shown(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def _bytes_of(home: Home, path: Path) -> bytes:
    """Return the content of a plain file that is not in the home. Links, pipes and devices are never read."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound("no such file", where=str(path)) from error
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        trouble = machine_trouble(error) if isinstance(error, OSError) else None
        raise trouble or InvalidInput(f"cannot be read: {why}; links are not followed", where=str(path)) from error
    try:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode):
            raise InvalidInput("is not a plain file", where=str(path))
        if _is_of(home, path, opened, about):
            raise Denied("belongs to Turnkeeper's home, whose files are given to no turn", where=str(path))
        with os.fdopen(opened, "rb", closefd=False) as file:
            data = file.read(LARGEST + 1)
        after = os.fstat(opened)
    finally:
        os.close(opened)
    if len(data) > LARGEST:
        raise InvalidInput(f"is larger than {LARGEST >> 10} KiB", where=str(path))
    if (after.st_size, after.st_mtime_ns) != (about.st_size, about.st_mtime_ns) or len(data) != about.st_size:
        raise Conflict("changed while it was read: try again", where=str(path))
    return data


def _is_of(home: Home, path: Path, opened: int, about: os.stat_result) -> bool:
    """Return True if an open file is in the home, or is hard-linked to a file of the home, by any path."""
    root = os.path.realpath(home.root)
    names = (path, f"/proc/self/fd/{opened}")  # if available, the second is safe against a change of the path
    if any(os.path.realpath(name).startswith(f"{root}/") for name in names):
        return True
    if about.st_nlink == 1:
        return False
    paths = (f"{at}/{name}" for at, _, names in os.walk(root) for name in names)
    return any(os.path.samestat(about, os.lstat(path)) for path in paths if os.path.lexists(path))
