"""Whatever a seed makes of time, connections, disks and processes, everything that was due comes to its end, once."""

from dataclasses import replace
from pathlib import Path
from random import Random  # noqa: TID251  seeded

import pytest

from agent_runtime.graph.guard.hooks import watched
from tests.simulation import script
from tests.simulation.__main__ import main
from tests.simulation.guards import GUARDS, UNSEEN, found, work_off
from tests.simulation.points import EFFECTS, OF_DELIVERIES, POINTS
from tests.simulation.processes import StepWorker
from tests.simulation.replay import FOLDERS, differing, log_of, replay, written
from tests.simulation.reused import checksum
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.script import DELIVERY, Fault, Script, Task, drawn, smallest
from tests.simulation.world import run
from turnkeeper.storage import damage
from turnkeeper.storage.database import Call

SHORT = {"minutes": 0.8, "between_s": 5.0, "works_s": 40.0}


@pytest.mark.parametrize("seed", range(60))
def test_a_short_seed_breaks_no_promise(seed: int) -> None:
    outcome = run(drawn(seed, **SHORT))
    assert not outcome.violations, outcome.script.text()
    assert not watched(), "no dead process of the run guards calls of others"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_breaks_no_promise(name: str) -> None:
    outcome = run(SCENARIOS[name])
    assert not outcome.violations
    counts = any(fault.kind in {"writes", "stores"} for fault in outcome.script.faults)
    assert bool(outcome.counts["refused writes"]) is counts, "the faults reach the disk"


_LOST = SCENARIOS["fires, receipts and outcomes are lost"]
QUIET = replace(
    _LOST, faults=(), delivers=True, tasks=(Task("proposes", 20, "run-once", "skip", job="Propose"), *_LOST.tasks)
)


def test_a_run_passes_each_point_at_which_faults_aim() -> None:
    passed = run(QUIET, keep=True).counts
    known = {**POINTS, **OF_DELIVERIES}
    assert all(passed[f"passed {point}"] for points in known.values() for point in points)


@pytest.mark.parametrize("point", [point for points in OF_DELIVERIES.values() for point in points])
def test_a_delivery_comes_to_its_end_after_a_crash_and_a_power_cut_at_each_of_its_points(point: str) -> None:
    effects = ("crash", "power", "EIO")
    faults = (Fault(18.0, "aim", DELIVERY, 0.5, 1 + 2 * at, f"{point} {effect}") for at, effect in enumerate(effects))
    outcome = run(replace(QUIET, tasks=QUIET.tasks[:3], faults=tuple(faults), faulty_s=70.0, works_s=15.0))
    assert sum(outcome.counts[f"{effect} at {step}"] for effect in effects for step in OF_DELIVERIES) == len(effects)
    assert not outcome.violations


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("step", POINTS)
def test_a_fault_at_the_second_pass_of_a_point_breaks_no_promise(step: str, effect: str) -> None:
    point = POINTS[step][-1]
    fault = Fault(18.0, "aim", point.partition(".")[0], 0.5, 2, f"{point} {effect}")
    outcome = run(replace(QUIET, tasks=QUIET.tasks[:3], faults=(fault,), faulty_s=50.0, works_s=15.0))
    assert outcome.counts[f"{effect} at {step}"] == 1
    assert not outcome.violations


def test_a_script_replays_byte_for_byte() -> None:
    first, second = (run(drawn(3, **SHORT), keep=True) for _ in range(2))
    assert first.lines == second.lines
    assert first.trace == second.trace != run(drawn(4, **SHORT)).trace


def test_a_new_process_with_another_hash_seed_writes_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has each event, statement, message and change of a file. This process has run other seeds before."""
    seeds, options = range(7, 9), [f"--{name.removesuffix('_s')}={value}" for name, value in SHORT.items()]
    one, other = (tmp_path / name for name in FOLDERS)  # the paths, which messages of errors have, are equally long
    one.mkdir()
    monkeypatch.setenv("TMPDIR", str(one))
    here = [run(drawn(seed, **SHORT), keep=True).lines for seed in seeds]
    there = log_of(seeds, options, other, hash_seed=3)
    assert not list(differing(written([line for lines in here for line in lines]), there))
    assert all(there.count(f" {what} ".encode()) for what in ("runs INSERT", "sends", "writes", "renames", "fault"))


def test_logs_that_differ_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.replay.log_of", lambda _seeds, _options, folder, _seed: folder.name.encode())
    said: list[str] = []
    assert replay(range(2), [], None, said.append) == 2
    assert said[:2] == ["0 DIFFERENT: 1 lines, 3 bytes", "    b'one'\n    b'two'"]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("size", [8, 24, 512, 4096, 65536])
def test_sums_of_frames_are_those_of_the_daemons(size: int, order: str) -> None:
    data = Random(size).randbytes(size)
    for before in ((0, 0), (2**32 - 1, 2**32 - 5)):
        assert checksum(data, before, order) == damage._checksum(data, before, order)


def test_a_script_is_kept_as_it_was_printed() -> None:
    made = drawn(7, minutes=5)
    assert eval(made.text(), vars(script)) == made


def test_the_smallest_script_keeps_what_the_failure_needs() -> None:
    faults = tuple(Fault(float(at), "break") for at in range(20))
    needed = {faults[3], faults[11]}
    found = smallest(Script(0, (Task("t", 20),), faults, 60.0), lambda one: needed <= set(one.faults))
    assert set(found.faults) == needed


def test_a_store_that_answers_before_its_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect: every tenth batch of the runtime is answered as if it were on disk, and is not."""
    batches: list[int] = []
    serve = StepWorker._run

    def forget(self: StepWorker, number: int) -> None:
        batches.append(number)
        if "checkpoints" in self._name or len(batches) % 10:
            serve(self, number)
        else:
            self._serves[number] = _undone(self._serves[number])
            serve(self, number)
            self._serves[number] = self._serves[number].__wrapped__

    monkeypatch.setattr(StepWorker, "_run", forget)
    assert run(QUIET).violations


def _undone(serve: object) -> object:
    """Return a function that does the work of a batch, but leaves nothing of it on the disk."""

    def without_commit(batch: list[Call]) -> None:
        connection = serve.args[0]  # type: ignore[attr-defined]
        transaction = connection.begin()
        work_off(connection, batch)
        transaction.rollback()

    without_commit.__wrapped__ = serve  # type: ignore[attr-defined]
    return without_commit


# The others take longer: `python -m tests.simulation.guards` takes out each.
SOON = (
    "A fire whose receipt was lost is sent again",
    "The position in the outcomes moves with what they changed",
    "An error of the machine is no fault of a fire",
    "A call outside the category waits for its author",
    "A run that was asked for twice runs once",
    "An event that came twice triggers once",
    "The name of an envelope is synced before the answer",
    "The bytes of an envelope are synced before its name",
    "Each commit is synced",
    "A delivery is recorded after it was sent",
)


@pytest.mark.parametrize("rule", SOON)
def test_a_guard_that_is_taken_out_is_missed(rule: str) -> None:
    seeds, invariant = found(rule, 10)
    assert seeds, "no seed found it"
    assert invariant


def test_each_guard_that_seeds_do_not_miss_names_a_test() -> None:
    assert set(UNSEEN) <= set(GUARDS)
    assert all(Path(test).is_file() for test in UNSEEN.values())


def test_bad_seeds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "many"])
    assert "A:B" in capsys.readouterr().err
