"""The benchmarks refuse a machine that is not idle, give a verdict on each gate, and name what slipped back."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks import bench_cpu, gates, machine
from benchmarks.report import Section, unusable

APPLY = "apply of 10,000, ours / APScheduler 3"
HELP = "turnkeeper --help / import"


@pytest.mark.parametrize(
    ("load", "shares", "said"),
    [
        (0.49, {"sh (pid 7)": 0.05}, []),
        (None, {}, []),
        (0.5, {}, ["the load is 0.50, and must be under 0.5"]),
        (
            7.25,
            {"cc (pid 8)": 0.06, "ld (pid 9)": 0.9, "sh (pid 7)": 0.01},
            [
                "the load is 7.25, and must be under 0.5",
                "ld (pid 9) takes 90% of a core; at most 5% is idle",
                "cc (pid 8) takes 6% of a core; at most 5% is idle",
            ],
        ),
    ],
)
def test_a_machine_is_idle_with_little_load_and_no_process_that_takes_much(load: Any, shares: Any, said: Any) -> None:
    assert machine.busy(load, shares) == said


def test_a_process_of_somebody_else_is_seen_and_those_of_the_measuring_are_not() -> None:
    waits = "import sys; sys.stdin.read()"
    orphan = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {waits!r}], stdout=-3).pid)"
    own = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE)
    made = subprocess.Popen([sys.executable, "-c", orphan], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdin is not None
    assert made.stdout is not None
    other = int(made.stdout.read())
    made.wait()
    try:
        seen = {pid for pid, _ in machine._cpu_s()}
        assert other in seen
        assert not seen & {own.pid, os.getpid(), os.getppid()}
    finally:
        os.kill(other, 9)
        own.kill()
        own.communicate()
        made.stdin.close()
        made.stdout.close()


def section(gated: dict[str, list[float]] | None = None) -> Section:
    rows = [("10,000 by `apply`", "9,000", "300", "30.0", "")]
    return Section(title="Registering", about="How.", header=("a", "b", "c", "d", "e"), rows=rows, gates=gated or {})


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let there be one part that measures nothing, and a folder for what is written."""
    monkeypatch.setattr(bench, "PARTS", {"register": ("Registering", lambda _times: section({APPLY: [40.0, 41.0]}), 1)})
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(bench, "BUSY", tmp_path / "busy.md")
    return tmp_path / "RESULTS.md"


def run(monkeypatch: pytest.MonkeyPatch, *argv: str, trouble: list[list[str]] | None = None) -> int:
    """Run the benchmarks on a machine that is found, look after look, as `trouble` says; idle after that."""
    found = iter(trouble or [])
    monkeypatch.setattr(bench, "look", lambda *, begun: next(found, []))
    monkeypatch.setattr(sys, "argv", ["benchmarks", *argv])
    return bench.main()


def test_on_a_busy_machine_nothing_is_measured_or_written(results: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(bench.PARTS, "register", ("Registering", lambda _times: pytest.fail("it measured"), 1))
    assert run(monkeypatch, trouble=[["the load is 3.00"]]) == bench.EXIT_BUSY
    assert "the machine is not idle: the load is 3.00: nothing is measured or written" in capsys.readouterr().out
    assert not results.exists()


def test_a_part_during_which_the_machine_became_busy_is_not_written(
    results: Path, monkeypatch: Any, capsys: Any
) -> None:
    assert run(monkeypatch, trouble=[[], ["cc (pid 8) takes 90% of a core"]]) == bench.EXIT_BUSY
    assert "register: not written, as the machine was busy meanwhile" in capsys.readouterr().out
    assert not results.exists()


def test_with_busy_ok_every_figure_says_that_it_is_no_result_and_the_results_stay(
    results: Path, monkeypatch: Any
) -> None:
    assert run(monkeypatch, "--busy-ok", trouble=[["the load is 3.00"]]) == 0
    assert not results.exists()
    text = bench.BUSY.read_text()
    assert "**Not a result" in text
    assert "| 10,000 by `apply` | 9,000 (no result) | 300 (no result) | 30.0 (no result) |  |" in text
    assert "| reached" not in text
    figures = [line for line in text.splitlines() if re.match(r"\| .*\d", line) and "not measured" not in line]
    assert all("no result" in line for line in figures)


def test_busy_ok_never_writes_the_results(results: Path, monkeypatch: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--busy-ok", "--into", str(results))


def test_the_results_begin_with_the_gates_and_keep_the_verdicts_of_other_parts(results: Path, monkeypatch: Any) -> None:
    assert run(monkeypatch) == 0
    help_ = section({HELP: [0.8]})
    monkeypatch.setitem(bench.PARTS, "register", ("Registering", lambda _times: help_, 1))
    assert run(monkeypatch) == 0
    text = results.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Gates", "## Registering"]
    assert f"| {APPLY} | 40.50 (40.00 to 41.00) | ≥ 40 | reached |" in text
    assert f"| {HELP} | 0.80 (0.80 to 0.80) | ≤ 0.55 | missed |" in text
    assert "| 5,000 due at once, ours / huey | not measured |" in text


def test_a_gate_is_reached_on_the_right_side_of_its_bound() -> None:
    assert [gates.Gate(2.5).reached(ratio) for ratio in (2.49, 2.5, 9)] == [False, True, True]
    assert [gates.Gate(0.7, at_most=True).reached(ratio) for ratio in (0.71, 0.7, 0.1)] == [False, True, True]


def test_every_gate_is_measured_by_a_part() -> None:
    turns = [{"at_once": n, "ratios": {"whole": [1.0], "saver": [1.0]}} for n, _ in bench.bench_turns.WORK]
    named = set(bench.bench_turns.gates(turns))
    sources = " ".join(path.read_text() for path in Path(bench.__file__).parent.glob("bench_*.py"))
    for name in set(gates.GATES) - named:
        said = name.partition(" among ")[0].removesuffix(" / import").removesuffix(" --help").replace("huey", "{name}")
        assert said.replace("ours / APScheduler 3", "ours / {name}") in sources or said in sources, name


def test_cpu_that_rose_by_more_than_the_noise_is_named_and_so_is_what_cannot_be_compared() -> None:
    recorded = {"a fire": 0.02, "a turn": 0.5, "gone": 1.0}
    assert gates.slipped(recorded, {"a fire": 0.0249, "a turn": 0.62, "gone": 0.1}) == []
    assert gates.slipped(recorded, {"a fire": 0.03, "a turn": 0.5, "new": 1.0}) == [
        "a fire: 0.0300 of the calibration, 50% above the recorded 0.0200",
        "gone: was not measured",
        "new: nothing is recorded",
    ]


def test_the_check_says_which_one_slipped(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    record = tmp_path / "recorded.json"
    monkeypatch.setattr(bench_cpu, "RECORDED", record)
    monkeypatch.setattr(bench_cpu, "calibration_s", lambda: 0.01)
    monkeypatch.setattr(bench_cpu, "measure", lambda _times: {"a fire, in the runner": [0.0002], "a turn": [0.005]})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--check"])
    assert bench.main() == 2
    assert "nothing is recorded yet" in capsys.readouterr().out
    record.write_text('{"a fire, in the runner": 0.01, "a turn": 0.5}')
    assert bench.main() == 1
    told = capsys.readouterr().out
    assert "slipped: a fire, in the runner: 0.0200 of the calibration, 100% above the recorded 0.0100" in told
    assert "slipped: a turn" not in told
    record.write_text('{"a fire, in the runner": 0.02, "a turn": 0.5}')
    assert (bench.main(), capsys.readouterr().out.splitlines()[-1]) == (0, "nothing slipped")


def test_a_full_run_records_the_cpu_and_a_busy_one_does_not(results: Path, monkeypatch: Any, tmp_path: Path) -> None:
    found = SimpleNamespace(**vars(section()))
    part = Section(**{**vars(found), "recorded": {"a turn": 0.5}})
    monkeypatch.setitem(bench.PARTS, "register", ("Registering", lambda _times: part, 1))
    monkeypatch.setattr(bench_cpu, "RECORDED", tmp_path / "recorded.json")
    run(monkeypatch, "--busy-ok")
    assert not bench_cpu.RECORDED.exists()
    run(monkeypatch)
    assert bench_cpu.RECORDED.read_text() == '{\n  "a turn": 0.5\n}\n'


def test_the_calibration_takes_a_while_and_only_figures_are_marked() -> None:
    assert machine.calibration_s() > 0
    assert unusable(("1,000", "2.0", "", "reached")) == ("1,000", "2.0 (no result)", "", "reached")
