"""Whatever is wrong with a name, a number, a cron expression, a zone or a file: it is refused with its reason, and
nothing is written."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from task_runner.cli import application
from task_runner.service.task_spec import Defaults, parse_spec
from turnkeeper import console
from turnkeeper.config.home import Home
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

REST = ("--category", "c", "--channel", "c", "--prompt", "p")
FINE = {"name": "x", "category": "c", "channel": "c", "prompt": "p"}
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
HUGE = "9" * 5000


@pytest.fixture
def refused(home: Home, capsys):
    """Run a command that has to be refused; return the one line it says. At the end nothing is written."""

    def run(*argv: str) -> str:
        code = console.run(application(), ["--home", str(home.root), *argv])
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), (argv, err)
        assert err.startswith("error: "), argv
        assert len(err) < 1000, argv
        return str(err)

    yield run
    assert console.run(application(), ["--home", str(home.root), "list", "-o", "name"]) == 0
    assert capsys.readouterr().out == "", "nothing was written"


NAMES = [
    "", "../x", "/x", "a\n", "a\0", "x" * 256, "\u0663", "\uff11", "é", "A", "-a", "a/b", "task-0123abcd", "loop-0123abcd",
]  # fmt: skip


def mistake(**fields: Any) -> str:
    """What a task of those fields is refused with, before anything is written: the field and the reason."""
    with pytest.raises(InvalidInput) as error:
        parse_spec(wire.TaskSpec(**FINE | fields), Defaults(timezone="UTC"), NOW)
    return f"{error.value} {getattr(error.value, 'caret', '')}"


def test_names(refused) -> None:
    for name in NAMES:
        assert mistake(name=name, every="1h").startswith("name: "), name
    assert "'../x' is not a task's name" in refused("create", "../x", "--every", "1h", *REST)


def test_what_is_no_unicode(refused) -> None:
    odd = "a\udcff"  # a byte that is no UTF-8, as it arrives on a command line
    refused("create", odd, "--every", "1h", *REST)
    for option in ("--prompt", "--cron", "--tz", "--tag", "--payload"):
        refused("create", "x", "--every", "1h", *REST, option, odd)


COUNTS = ["--max-fires", "--max-catch-up", "--pause-after-failures"]
NUMBERS = ["nan", "inf", "1e309", "1e3", "0x5", "1_0", "2.5", "\u0663", "+1", "", "9" * 20, HUGE]


def test_numbers(refused) -> None:
    for number in NUMBERS:
        assert "--max-fires" in refused("create", "x", "--every", "1h", *REST, f"--max-fires={number}")
    for option in [*COUNTS, "--retries"]:
        assert option[2:].replace("-", "_") in refused("create", "x", "--every", "1h", *REST, f"{option}=-1")
    for option in COUNTS:
        assert "from 1 to" in refused("create", "x", "--every", "1h", *REST, f"{option}=0")


def test_budgets(refused) -> None:
    for limit in ["-1", "0", "nan", "1e309", "\u0663", "", "9" * 20, HUGE]:
        assert "budget" in refused("create", "x", "--every", "1h", *REST, "--budget", f"turns_per_day={limit}")


SPANS = ["-5m", "nan", "1e309s", "5", "5 weeks ago", "\u0663m", "1m\n1m", "", HUGE + "s"]


def test_durations(refused) -> None:
    for span in SPANS:
        assert mistake(every=span).startswith("every: "), span
        assert mistake(**{"in": span}).startswith("in: "), span
        for field in ("grace", "jitter", "catch_up_window"):
            assert mistake(every="1h", **{field: span}).startswith(f"{field}: "), span
    mistake(every="0s")
    mistake(every="1h", catch_up_window="0s")
    assert "grace" in refused("create", "x", "--every", "1h", *REST, "--grace=-5m")


def test_instants(refused) -> None:
    for at in ["soon", "2026-02-30", "1999-01-01", "10000-01-01T00:00:00Z", "1e309", "", "2026-03-02T25:00"]:
        assert mistake(at=at).startswith("at: "), at
    assert "'soon' is not a time" in refused("create", "x", "--at", "soon", *REST)


EXPRESSIONS = [
    # The expression, what is said of it, and whether a caret shows the place.
    ("* * * *", "fields", False),
    ("* * * * * * *", "7", False),
    ("*/0 * * * *", "0", True),
    ("61 * * * *", "61", True),
    ("0 24 * * *", "24", True),
    ("0 0 0 * *", "0", True),
    ("0 0 30 2 *", "never", False),
    ("0 0 * * 8", "8", True),
    ("a * * * *", "a", True),
    ("\u0663 * * * *", "", True),
    ("R R * * *", "R", True),
    ("@reboot", "@reboot", False),
    ("* * * * *\0", "", False),
    ("0," * 130 + "0 * * * *", "256", False),
    ("", "", False),
]


def test_cron_expressions(refused) -> None:
    for expression, says, caret in EXPRESSIONS:
        said = mistake(cron=expression)
        assert said.startswith("cron: "), expression
        assert says in said, expression
        assert not caret or "^" in said, expression
    assert "^" in refused("create", "x", "--cron", "61 * * * *", *REST)


ZONES = [
    "", "localtime", "posixrules", "../../etc/passwd", "/etc/localtime", "posix/UTC", "right/UTC", "Mars/Base",
    "UTC\n", "UTC\0", "zone.tab", "utc+2", "Europe", "x" * 256, "\uff35TC",
]  # fmt: skip


def test_zones(refused) -> None:
    for zone in ZONES:
        assert mistake(every="1h", timezone=zone).startswith("timezone: "), zone
    assert "timezone" in refused("create", "x", "--every", "1h", *REST, "--tz", "localtime")


TABLE = '[[task]]\nname = "a"\nevery = "1h"\ncategory = "c"\nchannel = "c"\nprompt = "p"\n'
FILES: dict[str, tuple[bytes | str, str, str]] = {
    "unknown key": (TABLE + "colour = 1\n", ":7", "colour"),
    "unknown table": (TABLE + "[other]\n", "", "other"),
    "same key twice": (TABLE + 'every = "2h"\n', "", "line 7"),
    "same task twice": (TABLE + TABLE, ":8", "already declared"),
    "wrong type": (TABLE.replace('"1h"', "60"), ":3", "every"),
    "a float": (TABLE + "max_fires = 2.0\n", ":7", "max_fires"),
    "nan": (TABLE + "max_fires = nan\n", ":7", "max_fires"),
    "beyond all numbers": (TABLE + "max_fires = 1e309\n", ":7", "max_fires"),
    "beyond all integers": (TABLE + f"max_fires = {10**30}\n", ":7", "max_fires"),
    "5,000 digits": (TABLE + f"max_fires = {HUGE}\n", "", ""),
    "a negative number": (TABLE + "retries = -1\n", ":7", "retries"),
    "a truth for a number": (TABLE + "retries = true\n", ":7", "retries"),
    "nan in a payload": (TABLE + "payload = {a = nan}\n", "", "payload"),
    "a payload that is too deep": (TABLE + "payload = " + "{a = " * 500 + "1" + "}" * 500 + "\n", "", ""),
    "arrays that are too deep": (TABLE + "exclude = " + "[" * 5000 + "]" * 5000 + "\n", "", ""),
    "no UTF-8": (TABLE.encode() + b"# \xff\n", "", "UTF-8"),
    "a lone surrogate": (TABLE.replace('"p"', '"\\uD800"'), "", "line 6"),
    "NUL": (TABLE + "\0", "", ""),
    "too large": (TABLE + "#" * (1 << 20), "", "1048576"),
    "no TOML": ("[[task]\n", "", "line 1"),
    "a name with a path": (TABLE.replace('"a"', '"../a"'), ":2", "name"),
    "a bad expression": (TABLE.replace("every", "cron"), ":3", "cron"),
    "a bad zone": (TABLE + 'timezone = "localtime"\n', ":7", "timezone"),
}


def test_files(refused, tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    for what, (content, line, says) in FILES.items():
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        said = refused("apply", str(path))
        assert f"{path}{line}" in said, what
        assert says in said, what


def test_what_is_no_plain_file(refused, tmp_path: Path) -> None:
    plain, fifo, link = tmp_path / "plain.toml", tmp_path / "fifo.toml", tmp_path / "link.toml"
    plain.write_text(TABLE)
    os.mkfifo(fifo)
    link.symlink_to(plain)
    for path in (fifo, link):
        assert str(path) in refused("apply", str(path))


def test_a_preview_of_more_times_than_a_number_can_hold(refused) -> None:
    for count in ("0", "-1", str(2**31), str(10**12), HUGE):
        assert "limit" in refused("next", "--every", "1h", "-n", count), count
