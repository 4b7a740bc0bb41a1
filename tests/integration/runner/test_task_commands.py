"""The command line on a home without a daemon: what it prints, where, and how it exits."""

import json
import re
from datetime import datetime

import pytest

from task_runner.cli import application
from task_runner.cli.client import complete_channel, complete_name
from task_runner.cli.tasks import PANELS
from task_runner.model.fields import FIELDS
from turnkeeper import console
from turnkeeper.clock import SystemClock

REST = ("--category", "loop", "--channel", "general", "--prompt", "p")


@pytest.fixture
def command(home, capsys):
    def run(*argv: str) -> tuple[int, str, str]:
        code = console.run(application(), ["--home", str(home.root), *argv])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_run_of_a_paused_task_says_that_it_is_paused_and_why(command) -> None:
    command("create", "digest", "--every", "7m", *REST)
    assert "by hand" not in command("run", "digest")[2]
    command("pause", "digest", "--note", "holidays")
    told = "digest is paused: holidays; a run by hand runs all the same, and starts the tasks that follow it"
    assert told in command("run", "digest")[2]


def test_a_task_from_creation_to_deletion(command) -> None:
    code, out, err = command("create", "digest", "--every", "7m", *REST, "--tag", "team=x", "--tz", "Europe/Riga")
    assert code == 0
    assert "every 7m, exactly" in out
    assert "Europe/Riga" in out
    assert out.count("next:") == 3
    assert "nothing fires until" in err
    code, out, _ = command("list", "-o", "json")
    (task,) = json.loads(out)
    assert (task["name"], task["state"], task["tags"]) == ("digest", "active", {"team": "x"})
    assert command("list", "-o", "name")[1] == "digest\n"
    assert command("pause", "digest", "--note", "away")[1] == "digest paused\n"
    assert json.loads(command("show", "digest", "-o", "json")[1])["paused_note"] == "away"
    assert command("resume", "digest")[0] == 0
    assert "~m" in command("run", "digest")[1]
    (fire,) = json.loads(command("history", "digest", "-o", "json")[1])
    assert list(fire) == [
        "fire_id", "task_id", "kind", "nominal_at", "due_at", "fired_at", "accepted_at", "started_at", "ended_at",
        "outcome", "reason", "count", "first_nominal_at", "last_nominal_at", "late_s", "attempt", "turn_id", "cause",
        "deliveries",
    ]  # fmt: skip
    assert (fire["kind"], fire["outcome"]) == ("manual", "pending")
    assert json.loads(command("history", "digest", "--from", "1h", "--to", "in 1h", "-o", "json")[1]) == [fire]
    assert json.loads(command("history", "digest", "--to", "1h ago", "-o", "json")[1]) == []
    assert command("history", "--from", "sometime")[0] == 2
    assert command("disable", "digest")[1] == "digest disabled\n"
    assert command("resume", "digest")[1] == command("enable", "digest")[1] == "digest resumed\n"
    assert command("remove", "digest")[1] == "digest deleted\n"
    assert json.loads(command("list", "-o", "json")[1]) == []
    assert command("history", task["id"])[0] == 0


def test_the_table_shows_what_people_look_for(command) -> None:
    command("create", "digest", "--cron", "0 9 * * 1-5", *REST)
    _, out, err = command("list")
    assert out.splitlines()[0].split() == [
        "NAME", "SCHEDULE", "NEXT", "LEFT", "STATE", "MISSED", "LAST", "RESULT", "CATEGORY", "CHANNEL", "CATCH-UP",
        "FIRES",
    ]  # fmt: skip
    assert err.startswith("1 task · task-runner is not running")
    columns = [field.column for field in FIELDS if field.column]
    assert {"TZ", "OVERLAP", "JITTER", "THREAD", "AGENT"} <= set(columns)
    wide = command("list", "-o", "wide")[1].splitlines()[0].split()[12:]
    assert wide == ["ID", *columns, "LATE-P95", "PROMPT"]


@pytest.mark.parametrize(("width", "hidden"), [(80, "CATEGORY"), (120, "FIRES")])
def test_a_narrow_terminal_shows_the_last_fire_and_its_result(command, monkeypatch, width: int, hidden: str) -> None:
    command("create", "digest", "--cron", "0 9 * * 1-5", *REST)
    command("create", "a-name-that-takes-more-room-than-there-is", "--every", "15m", *REST)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, out, err = command("list")
    headings, *rows = re.sub(r"\x1b\[\d*m", "", out).splitlines()
    assert {"NAME", "NEXT", "STATE", "LAST", "RESULT"} <= set(headings.split())
    assert max(map(len, [headings, *rows])) <= width
    assert any("a-name-that-takes" in row for row in rows), "which is first depends on the time of day"
    assert hidden in err


@pytest.mark.parametrize("words", [("create",), ("edit",)])
def test_help_groups_the_options_of_a_task(command, words) -> None:
    _, out, _ = command(*words, "-h")
    headings = [line.removesuffix(":") for line in out.splitlines() if re.fullmatch(r"\S.*:", line)]
    assert headings == ["Arguments", *PANELS]
    under = {heading: out.partition(f"\n{heading}:\n")[2].partition("\n\n")[0] for heading in PANELS}
    assert "--cron" in under["When"]
    assert "--category" in under["Permissions"]
    assert {"--dry-run", "--output", "--help"} <= set(re.findall(r"--[a-z-]+", under["Output"]))
    grouped = {name for names in PANELS.values() for name in names.split()}
    assert grouped >= {field.name for field in FIELDS if field.flag}


def test_a_payload_alone_is_work_for_a_graph_that_takes_no_prompt(command) -> None:
    rest = ("--every", "1m", "--category", "loop", "--channel", "general")
    assert command("create", "x", *rest, "--payload", '{"topic": "tea"}')[0] == 0
    (task,) = json.loads(command("list", "-o", "json")[1])
    assert (task["prompt"], task["payload"]) == ("", {"topic": "tea"})
    assert "--prompt" in command("create", "y", *rest)[2]


def test_quietly_a_created_task_is_its_name_alone(command) -> None:
    assert command("create", "-q", "digest", "--cron", "0 9 * * 1-5", *REST) == (0, "digest\n", "")
    code, out, _ = command("create", "-q", "other", "--cron", "0 9 * * 1-5", *REST, "-o", "json")
    assert (code, json.loads(out)["name"]) == (0, "other")


def test_files_are_applied_and_exported_without_change(command, home, tmp_path) -> None:
    (home.tasks / "a.toml").write_text(
        '[[task]]\nname = "a"\ncron = "0 9 * * *"\ncategory = "loop"\nchannel = "c"\nprompt = "p\\n\\u202e\\u0085\\U000e0041"\n'
        'payload = {x = [1, {y = "z"}]}\ntags = {k = "v"}\n\n[[task]]\nname = "b"\nin = "25m"\ncategory = "loop"\n'
        'channel = "c"\nprompt = "q"\ncatch_up = "run-all"\n'
    )
    assert "2 created (dry run" in command("apply", "--dry-run")[2]
    assert "2 created" in command("apply")[2]
    assert "2 unchanged" in command("apply")[2]
    assert command("export", "--split", str(tmp_path))[0] == 0
    assert "2 unchanged" in command("apply", str(tmp_path))[2]
    (tmp_path / "all.toml").write_text(command("export")[1])
    assert "2 unchanged" in command("apply", str(tmp_path / "all.toml"))[2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[task]]\nname = "a"\nevery = "1m"\ncategory = "c"\nchannel = "c"\nprompt = "p"\ncolour = 1\n', ":7: task.colour"),
        ('[[task]]\nname = "a"\ncategory = "c"\nchannel = "c"\nprompt = "p"\n', "cron, every, at, in"),
        ("[[task]]\nname = 1\n", "name"),
        ("[[task]\n", "not valid TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_line(command, tmp_path, text, says) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    code, _, err = command("apply", str(path))
    assert code == 2
    assert err.startswith(f"error: {path}")
    assert says in err


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("create", "x", "--cron", "61 * * * *", *REST), 2, "61"),
        (("create", "x", *REST), 2, "--cron"),
        (("create", "x", "--every", "1m", "--in", "1m", *REST), 2, "exactly one"),
        (("create", "x", "--every", "1m", "--category", "c", "--channel", "c"), 2, "prompt"),
        (("create", "x", "--every", "1m", *REST, "--tag", "k"), 2, "key=value"),
        (("create", "x", "--every", "1m", *REST, "--payload", "@/nosuch"), 3, "/nosuch"),
        (("create", "x", "--every", "1m", *REST, "--jitter", "some"), 2, "jitter"),
        (("create", "x", "--every", "1m", *REST, "--retries", "9"), 2, "retries"),
        (("create", "x", "--every", "1m", *REST, "--budget", "tokens_per_day=lots"), 2, "whole number"),
        (("create", "x", "--every", "1m", *REST, "--budget", "euros_per_day=1"), 2, "tokens_per_day"),
        (("create", "x", "--every", "1m", *REST, "--exclude", "/nosuch.ics"), 3, "/nosuch.ics"),
        (("create", "x", "--rrule", "FREQ=SECONDLY", *REST), 2, "finer than a minute"),
        (("show", "nosuch"), 3, "nosuch"),
        (("next",), 2, "exactly one"),
        (("next", "--every", "1m", "--from", "soon"), 2, "soon"),
        (("run", "x", "--wait"), 2, "no daemon"),
        (("lst",), 2, "lst"),
    ],
)
def test_mistakes_exit_with_one_line(command, argv, code, says) -> None:
    found, out, err = command(*argv)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert says in err


YEAR = SystemClock().now().year + 1  # events count from last month on
CALENDAR = f"""BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//example//EN
BEGIN:VEVENT
UID:1
DTSTART;VALUE=DATE:{YEAR}1224
DTEND;VALUE=DATE:{YEAR}1227
SUMMARY:Holidays
END:VEVENT
BEGIN:VEVENT
UID:2
DTSTART;VALUE=DATE:{YEAR}0704
RRULE:FREQ=YEARLY;UNTIL={YEAR + 2}0704
EXDATE;VALUE=DATE:{YEAR + 1}0704
SUMMARY:Every year
END:VEVENT
BEGIN:VEVENT
UID:3
DTSTART:{YEAR}1101T120000Z
DTEND:{YEAR}1101T140000Z
SUMMARY:Two hours
END:VEVENT
END:VCALENDAR
"""
EXCLUDED = [
    f"{YEAR}-07-04", f"{YEAR}-11-01T12:00:00Z..{YEAR}-11-01T14:00:00Z", f"{YEAR}-12-24..{YEAR}-12-26", f"{YEAR + 1}-01-01", f"{YEAR + 2}-07-04",
]  # fmt: skip


def test_every_option_is_shown_and_survives_export_and_apply(command, tmp_path) -> None:
    (tmp_path / "free.ics").write_text(CALENDAR.replace("\n", "\r\n"))
    options = (
        "--rrule", "FREQ=DAILY;BYHOUR=9;BYMINUTE=0", "--exclude", f"{tmp_path}/free.ics", "--exclude", f"{YEAR + 1}-01-01",
        "--jitter", "20s", "--retries", "3", "--pause-after-failures", "4", "--budget", "tokens_per_day=100000",
        "--budget", "turns_per_fire=2", "--catch-up-window", "2d", "--max-fires", "9", "--read-only", "--tz", "UTC",
    )  # fmt: skip
    assert command("create", "digest", *options, *REST)[0] == 0
    shown = json.loads(command("show", "digest", "-o", "json")[1])
    assert shown["rrule"] == "FREQ=DAILY;BYHOUR=9;BYMINUTE=0"
    assert shown["exclude"] == EXCLUDED
    assert (shown["jitter"], shown["retries"], shown["pause_after_failures"]) == ("20s", 3, 4)
    assert shown["budget"] == {"tokens_per_day": 100000, "turns_per_fire": 2}
    assert datetime.fromisoformat(shown["due_at"]) >= datetime.fromisoformat(shown["next_fire_at"])
    assert "tokens_per_day=100000" in command("show", "digest")[1]
    (tmp_path / "all.toml").write_text(command("export")[1])
    assert "1 unchanged" in command("apply", str(tmp_path / "all.toml"))[2]
    dues = json.loads(command("next", "digest", "-o", "json", "-n", "9")[1])
    assert all(0 <= seconds(item["due_at"]) - seconds(item["nominal_at"]) <= 20 for item in dues)
    assert len({seconds(item["due_at"]) - seconds(item["nominal_at"]) for item in dues}) > 1


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_task_file_finds_its_calendar_beside_it(command, tmp_path) -> None:
    (tmp_path / "free.ics").write_text(CALENDAR)
    table = '[[task]]\nname = "a"\ncron = "0 9 * * *"\ncategory = "loop"\nchannel = "c"\nprompt = "p"\n'
    (tmp_path / "a.toml").write_text(
        table + f'exclude = ["free.ics", "{YEAR + 1}-01-01"]\nbudget = {{turns_per_day = 3}}\n'
    )
    assert command("apply", str(tmp_path / "a.toml"))[0] == 0
    assert json.loads(command("show", "a", "-o", "json")[1])["exclude"] == EXCLUDED
    (tmp_path / "free.ics").write_text("BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VEVENT\nEND:VCALENDAR\n")
    assert "cannot be read as a calendar" in command("apply", str(tmp_path / "a.toml"))[2]


def test_next_previews_without_creating(command) -> None:
    _, out, err = command(
        "next", "--cron", "0 9 * * *", "--tz", "Europe/Riga", "--from", "2026-03-28T12:00:00Z", "-o", "json"
    )
    assert [item["local"] for item in json.loads(out)][:2] == ["2026-03-29T09:00:00+03:00", "2026-03-30T09:00:00+03:00"]
    assert json.loads(command("next", "--every", "1m", "-n", "2", "-o", "json")[1])[1]["nominal_at"].endswith("Z")
    assert err == ""


def test_tick_plans_what_is_due(command) -> None:
    command("create", "digest", "--every", "1d", *REST)
    code, out, err = command("tick")
    assert (code, out) == (0, "0 tasks planned, 0 fires committed, 0 times skipped\n")
    assert "nothing fires" in err


TABLE = '[[task]]\nname = "{0}"\nevery = "{1}"\ncategory = "loop"\nchannel = "c"\nprompt = "p"\n'


def test_apply_shows_each_value_that_changes_and_prunes_what_no_file_declares(command, tmp_path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text(TABLE.format("a", "1h") + TABLE.format("b", "1h"))
    assert "2 created" in command("apply", str(path))[2]
    path.write_text(TABLE.format("a", "2h") + 'tags = {k = "v"}\nretries = 2\n')
    code, out, _err = command("apply", str(path), "--diff", "--prune", "-o", "json")
    updated, deleted = json.loads(out)
    assert (code, deleted["name"], deleted["action"]) == (0, "b", "deleted")
    assert updated["diff"] == [
        {"field": "schedule", "old": "every 1h", "new": "every 2h"},
        {"field": "tags", "old": "-", "new": "k=v"},
        {"field": "retries", "old": "the default", "new": "2"},
    ]
    assert "schedule: every 1h -> every 2h" in command("apply", str(path), "--diff")[1]
    assert command("list", "-o", "name")[1] == "a\nb\n", "nothing was written"
    assert "1 updated, 1 deleted" in command("apply", str(path), "--prune")[2]
    assert command("list", "-o", "name")[1] == "a\n"
    path.write_text("")
    assert command("apply", str(path), "--prune")[0] == 2


def test_a_prune_deletes_nothing_where_a_declaration_is_wrong_and_never_a_loop(command, tmp_path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text(TABLE.format("a", "1h") + TABLE.format("b", "1h"))
    command("apply", str(path))
    assert command("loop", "create", "15m", "p")[0] == 0
    path.write_text(TABLE.format("a", "2h") + TABLE.format("c", "sometimes"))
    assert command("apply", str(path), "--prune")[0] == 2
    assert len(command("list", "-o", "name")[1].splitlines()) == 3
    path.write_text(TABLE.format("a", "2h"))
    assert "1 updated, 1 deleted" in command("apply", str(path), "--prune")[2]
    left = command("list", "-o", "name")[1].splitlines()
    assert sorted(name.split("-")[0] for name in left) == ["a", "loop"]


def test_what_fits_into_no_one_request_is_pruned_by_the_last(command, tmp_path, monkeypatch) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text("".join(TABLE.format(name, "1h") for name in "abcd"))
    command("apply", str(path))
    monkeypatch.setattr("task_runner.cli.declare.apply._PER_REQUEST", 50)
    path.write_text("".join(TABLE.format(name, "2h") for name in "abc"))
    assert "3 updated, 1 deleted" in command("apply", str(path), "--prune")[2]
    assert command("list", "-o", "name")[1] == "a\nb\nc\n"


def test_what_the_runner_refuses_in_a_file_names_file_line_and_key(command, tmp_path) -> None:
    for count in (1, 3):
        path = tmp_path / f"{count}.toml"
        tables = [TABLE.format(f"t{number}", "1h") for number in range(count - 1)]
        path.write_text("\n".join([*tables, TABLE.format("bad", "sometimes")]))
        code, out, err = command("apply", str(path))
        assert (code, out) == (2, "")
        line = path.read_text().splitlines().index('every = "sometimes"') + 1
        assert err.startswith(f"error: {path}:{line}: task.every: 'sometimes' is not a duration")
    path.write_text(TABLE.format("twice", "1h") * 2)
    assert f"{path}:8: task.name: 'twice' is already declared, at {path}:2" in command("apply", str(path))[2]
    assert command("list", "-o", "name")[1] == ""


def test_names_and_channels_are_completed(command) -> None:
    command("create", "digest", "--every", "1h", "--category", "loop", "--channel", "general", "--prompt", "p")
    assert (complete_name("di"), complete_name("x")) == (["digest"], [])
    assert (complete_channel("gen"), complete_channel("x")) == (["general"], [])


CRONTAB = """# nightly
MAILTO=me@example.org
CRON_TZ=Europe/Riga
30 2 * * 1-5 /usr/local/bin/backup --all
@daily\t/usr/bin/report 50\\% done
0 * * * *  mail -s hi%text of it
@reboot /usr/bin/start
0 9 * *
"""


def test_a_crontab_becomes_tasks_and_what_cannot_is_listed(command, tmp_path) -> None:
    path = tmp_path / "my.cron"
    path.write_text(CRONTAB)
    argv = ("import", "--crontab", str(path), "--category", "loop", "--channel", "c")
    code, out, err = command(*argv, "--dry-run")
    assert (code, command("list", "-o", "name")[1]) == (0, "")
    code, out, err = command(*argv, "-o", "json")
    assert [(row["name"], row["cron"]) for row in json.loads(out)] == [
        ("cron-backup-all", "30 2 * * 1-5"), ("cron-report-50-done", "@daily"), ("cron-mail-hi", "0 * * * *"),
    ]  # fmt: skip
    for number, says in (
        (2, "MAILTO"),
        (6, "after %"),
        (7, "let cron run turnkeeper task run NAME"),
        (8, "is not an entry"),
    ):
        assert f"{path}:{number}: not imported: " in err
        assert says in err
    shown = json.loads(command("show", "cron-report-50-done", "-o", "json")[1])
    assert (shown["timezone"], shown["prompt"].splitlines()[-1]) == ("Europe/Riga", "/usr/bin/report 50% done")
    assert f"{path}:4: a task named 'cron-backup-all' exists" in command(*argv)[2]
    path.write_text("61 * * * * x\n")
    code, out, err = command(*argv)
    assert (code, out) == (2, "")
    assert f"{path}:1: not imported: 61 * * * *: minute '61': 61 is out of range" in err


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("0 8 * * * cd /srv/app && ./publish.sh --all >> log 2>&1", "cron-publish-all"),
        ("*/10 * * * * python3 /opt/bin/check_mail.py", "cron-check-mail"),
        ("@daily PATH=/x:/y certbot renew -q", "cron-certbot-renew"),
        ("0 3 * * 0 [ -x /usr/bin/logrotate ] && /usr/bin/logrotate /etc/rotate.conf", "cron-logrotate-rotate"),
        ("1 1 * * * bash -c 'pg_dump shop > shop.sql'", "cron-pg-dump-shop"),
        ("3 3 * * * sudo nice -n 10 /opt/sync-photos.sh | mail ada", "cron-sync-photos"),
        ("1 1 * * * cd /srv/app", "cron-cd-app"),
        ("1 1 * * * ;", "cron-entry"),
    ],
)
def test_a_task_of_a_crontab_is_named_after_its_job(command, tmp_path, entry: str, name: str) -> None:
    path = tmp_path / "my.cron"
    path.write_text(f"{entry}\n")
    code, out, err = command("import", "--crontab", str(path), "--category", "loop", "--channel", "c", "-o", "name")
    assert (code, out) == (0, f"{name}\n"), err


def test_entries_that_cron_never_runs_or_reads_otherwise_are_listed_and_the_rest_is_imported(command, tmp_path) -> None:
    path = tmp_path / "my.cron"
    path.write_text(
        "10 10 31 2 * /bin/off\n0 0 */2 * 1 /bin/both\n0 9 5,* * 1 /bin/each\n0 9 * * mon /bin/weekly\n"
        "@every_minute /bin/often\nCRON_TZ=Riga\n0 9 * * * /bin/where\nCRON_TZ=\n0 0 */2 * * /bin/other\n"
    )
    argv = ("import", "--crontab", str(path), "--category", "loop", "--channel", "c", "-o", "json")
    code, out, err = command(*argv)
    assert (code, [row["name"] for row in json.loads(out)]) == (0, ["cron-weekly", "cron-other"])
    for number, says in (
        (1, "10 10 31 2 *: day of month '31': it never fires"),
        (2, "names days that match both of */2 (day of month) and 1 (weekday), a cron expression here names days that match either; write it as --rrule 'FREQ=DAILY;BYMONTHDAY=1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31;BYDAY=MO;BYHOUR=0;BYMINUTE=0'"),
        (3, "names days that match either of 5,* (day of month) and 1 (weekday), a cron expression here names days that match both; create a task for each of the two"),
        (5, "@every_minute"),
        (7, "'Riga' is not a time zone"),
    ):  # fmt: skip
        assert f"{path}:{number}: not imported: " in err
        assert says in err


def test_an_import_begins_with_a_warning_that_agents_run_no_commands(command, tmp_path) -> None:
    path = tmp_path / "my.cron"
    path.write_text("MAILTO=me\n0 9 * * mon /bin/weekly\n")
    err = command("import", "--crontab", str(path), "--category", "loop", "--channel", "c")[2]
    assert err.startswith(
        "warning: Turnkeeper runs agents, not commands: these tasks ask the agent to run the command."
    )
    assert "a fire without such a tool ends and runs nothing" in " ".join(err.split())


def test_days_that_an_expression_repeats_or_unites_are_said(command, tmp_path) -> None:
    argv = ("--every", "1h", "--category", "loop", "--channel", "c", "--prompt", "p")
    every_second = "to fire every second week: --rrule 'FREQ=WEEKLY;INTERVAL=2;BYDAY=SU;BYHOUR=3;BYMINUTE=0'"
    for number, (cron, said) in enumerate((
        ("0 3 * * SUN/2", f"warning: 0 3 * * SUN/2 fires each week on Sun, Tue, Thu and Sat; {every_second}"),
        ("0 3 * * 1-5/2", "warning: 0 3 * * 1-5/2 fires each week on Mon, Wed and Fri; to fire every second week: "
         "--rrule 'FREQ=WEEKLY;INTERVAL=2;BYDAY=MO;BYHOUR=3;BYMINUTE=0'"),
        ("0 3 */14 * 0", "a cron expression here names days that match either; write it as --rrule"),
        ("0 3 */14 * 0", every_second),
        ("0 3 1 * 0", ""),
        ("0 3 */2 * *", ""),
        ("0 3 * * SUN", ""),
    )):  # fmt: skip
        new = command("create", f"c{number}", "--cron", cron, *argv[2:])[2]
        command("create", f"e{number}", *argv)
        old = command("edit", f"e{number}", "--cron", cron)[2]
        again = command("edit", f"e{number}", "--prompt", "q")[2]
        for err in (new, old):
            assert said in " ".join(err.split()), (cron, err)
            assert bool(said) == ("warning: 0 3" in err), (cron, err)
        assert "warning: 0 3" not in again, "only a changed schedule is described"
    path = tmp_path / "my.cron"
    path.write_text("0 3 * * 0/2 /bin/weekly\n")
    err = command("import", "--crontab", str(path), "--category", "loop", "--channel", "c")[2]
    assert f"warning: 0 3 * * 0/2 fires each week on Sun, Tue, Thu and Sat; {every_second}" in " ".join(err.split())


def test_a_deleted_task_is_restored_by_the_command_that_is_named(command) -> None:
    command("create", "digest", "--every", "1h", "--category", "loop", "--channel", "c", "--prompt", "p")
    err = command("delete", "digest")[2]
    assert "restore it within a day: turnkeeper task restore digest" in err
    assert command("restore", "digest")[0] == 0


def test_a_time_is_shown_once_if_the_machine_is_in_the_zone_of_the_schedule(command) -> None:
    for zone, columns in (("UTC", ["NEXT"]), ("Asia/Tokyo", ["NEXT", "IN Asia/Tokyo"])):
        out = command("next", "--cron", "0 9 * * *", "--tz", zone)[1]
        assert re.split("  +", out.splitlines()[0].strip()) == columns, out


def test_an_entry_that_the_runner_refuses_is_named_with_its_line(command, tmp_path) -> None:
    path = tmp_path / "my.cron"
    path.write_text("# a page break\f\n0 9 * * mon /bin/weekly\n0 9 * * 2 /bin/a\0b\n")
    code, out, err = command("import", "--crontab", str(path), "--category", "loop", "--channel", "c")
    assert (code, out) == (2, "")
    assert f"{path}:3: prompt: contains a NUL character" in err
