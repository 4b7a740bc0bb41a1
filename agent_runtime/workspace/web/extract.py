"""Extraction of a page's text, in a separate process: `python -m agent_runtime.workspace.web.extract`.

A page is untrusted text, and its parser is large, so a hostile page could take minutes or all memory. A thread cannot
be stopped. So a new process reads each page. The process limits its own memory and CPU time, gets no secrets in its
environment, and is killed at the caller's timeout. It keeps nothing for the next page.
"""

import asyncio
import codecs
import contextlib
import gc
import json
import os
import re
import resource
import sys
from importlib import import_module
from typing import Any

from turnkeeper.config.build import install_command
from turnkeeper.errors import InvalidInput, Unreachable, machine_trouble
from turnkeeper.rpc.process import loading

LONGEST_S = 10.0
MOST_MEMORY = 1 << 30  # bytes
MOST_ANSWER = 32 * 2**20  # bytes of JSON
LONGEST_TITLE = 1000
HTML = frozenset({"text/html", "application/xhtml+xml"})
_CHARSET = re.compile(r"[A-Za-z0-9_.:-]{1,40}", re.ASCII)
# Python's names. The other codecs are rare, slow or not charsets at all: punycode, zlib, unicode_escape.
_CHARSETS = frozenset(
    f"utf-8 utf-8-sig utf-16 utf-16-le utf-16-be ascii mac-roman mac-cyrillic koi8-r koi8-u tis-620 cp866 cp874 cp932 "
    f"cp949 gb2312 gbk gb18030 big5 big5hkscs shift_jis euc_jp euc_kr iso2022_jp "
    f"{' '.join(f'iso8859-{part}' for part in range(1, 17))} {' '.join(f'cp125{part}' for part in range(9))}".split()
)
_READY = b"\n"
_KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "TMPDIR")


async def extracted(html: bytes, charset: str, url: str, timeout_s: float) -> tuple[str, str]:
    """Return title and text of a page.

    Args:
        html: the server's answer, decompressed.
        charset: the charset that the server states; empty if unknown.
        timeout_s: seconds until the process is killed, not counting its start.

    Raises:
        InvalidInput: the page cannot be read in time, or has no text.
        Unreachable: the process cannot be started.
    """
    given = json.dumps({"charset": known_charset(charset), "url": url}).encode()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __spec__.name, cwd="/",
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        if (trouble := machine_trouble(error, "web")) is not None:  # not a fault of the page
            raise trouble from error
        raise Unreachable(f"the process that reads pages cannot be started: {error.strerror}", where="url") from error
    try:
        await _ready(process)
        async with asyncio.timeout(timeout_s):
            said, _ = await asyncio.gather(_answer(process), _feed(process, given + b"\n" + html))
    except TimeoutError as error:
        raise InvalidInput(f"the page could not be read within {timeout_s:g} s", where="url") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
    return _read(said)


def known_charset(name: str) -> str:
    """Return Python's name of a known charset of web pages; empty for any other."""
    if not _CHARSET.fullmatch(name):
        return ""
    try:
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        return ""
    return found if found in _CHARSETS else ""


async def _ready(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    with contextlib.suppress(asyncio.IncompleteReadError):  # the process has ended without an answer
        await process.stdout.readexactly(len(_READY))


async def _answer(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    try:
        await process.stdout.readexactly(MOST_ANSWER)
    except asyncio.IncompleteReadError as whole:
        await process.wait()
        return whole.partial
    return b""


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # the process has ended; its output, or the lack of it, shows the reason
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


def _read(said: bytes) -> tuple[str, str]:
    if not said:
        raise InvalidInput("the page could not be read: it takes too much time or memory", where="url")
    answer = json.loads(said)
    if answer["missing"]:
        hint = f"install it with: {install_command('turnkeeper[web-fetch]')}"
        raise InvalidInput("reading web pages needs an optional package", where="web.fetch", hint=hint)
    if not answer["text"]:
        raise InvalidInput("has no readable text", where="url")
    return answer["title"], answer["text"]


def main() -> None:
    """Read one page from the standard input, and write its title and text to the standard output."""
    seconds = int(LONGEST_S)
    for limit, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, MOST_MEMORY),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # systems without this limit have the other limits
            resource.setrlimit(limit, (most, most))
    with loading(), contextlib.suppress(ImportError):  # the answer reports the failure
        import_module("trafilatura")  # its import takes longer than reading most pages
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    head, _, body = sys.stdin.buffer.read().partition(b"\n")
    given = json.loads(head)
    try:
        answer = _taken_apart(body, given["charset"], given["url"]) | {"missing": False}
    except ImportError:
        answer = {"missing": True}
    sys.stdout.buffer.write(json.dumps(answer).encode())
    gc.freeze()  # avoids a garbage collection at exit


def _taken_apart(body: bytes, charset: str, url: str) -> dict[str, Any]:
    import trafilatura  # noqa: PLC0415  an optional extra, and slow to import

    html: Any = body.decode(charset, errors="replace") if charset else body
    page: Any = trafilatura.bare_extraction(html, url=url, include_comments=False, with_metadata=True)
    title, text = (page.title or "", page.text or "") if page else ("", "")
    return {"title": " ".join(title.split())[:LONGEST_TITLE], "text": text.strip()}


if __name__ == "__main__":
    main()
