"""What the watcher decides, sentence by sentence."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.constellation.supervisor.markers import UNREADABLE, Budget, CrashLoop, Memory, Stall
from turnkeeper.constellation.supervisor.policy import Action, Escalate, Kill, Limits, Note, Phase, Sight, Start, look

LIMITS = Limits(interval_s=60, restarts=4, window_s=600, failed_starts=3, start_timeout_s=120, hang_after_s=180)
NOW = 1_000_000.0
ABSENT = Sight(state="absent", error="exit code 2")
WAITS = replace(ABSENT, error="exit code 5", waits=True)
STARTING = Sight(state="starting", pid=7)
UP = Sight(state="up", pid=7, beats=1)


@dataclass
class Watch:
    """A daemon watched over time; the memory is carried from look to look."""

    memory: Memory = field(default_factory=Memory)
    now: float = NOW
    ids: int = 0
    quiet: bool = False
    wake_at: float = 0.0

    def sees(self, sight: Sight, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        self.ids += 1
        step = look(self.now, sight, self.memory, LIMITS, quiet=self.quiet, new_id=f"id-{self.ids}")
        self.memory, self.wake_at = step.memory, step.wake_at
        return list(step.actions)

    def sees_it_start(self, pid: int = 7) -> None:
        """Once started, it serves."""
        self.sees(replace(UP, pid=pid))


def kinds(actions: list[Action], kind: Any) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def running() -> Watch:
    """One that was started, serves, and is verified."""
    watch = Watch()
    watch.sees(ABSENT)
    watch.sees_it_start()
    watch.sees(replace(UP, beats=20), 60)
    assert watch.memory.revive is None
    return watch


def test_the_first_start_is_no_restart():
    watch = Watch()
    assert watch.sees(ABSENT) == [Start(id="id-1", crashed=False)]
    assert watch.memory.budget == Budget()


def test_one_that_runs_already_is_adopted_and_left_alone():
    watch = Watch()
    assert watch.sees(UP) == []
    assert watch.memory.budget == Budget()


def test_one_that_was_adopted_and_dies_counts_as_a_restart():
    watch = Watch()
    watch.sees(UP)
    assert watch.sees(ABSENT, 5) == [Start(id="id-2", crashed=True)]
    assert watch.memory.budget == Budget(restarts=(NOW + 5,))


def test_the_first_death_is_mended_at_once():
    watch = running()
    assert kinds(watch.sees(ABSENT, 1), Start)


def test_one_whose_database_does_not_answer_is_started_for_ever_with_a_pause_and_counts_nothing():
    watch = Watch()
    watch.sees(WAITS)
    starts = []
    for _ in range(1000):  # an hour of looks, at least one a second
        actions = watch.sees(WAITS, min(1.0, max(0.0, watch.wake_at - watch.now)) or 1.0)
        assert not kinds(actions, Escalate)
        starts += [watch.now for _ in kinds(actions, Start)]
    pauses = [after - before for before, after in itertools.pairwise(starts)]
    assert len(starts) > 100
    assert min(pauses) >= 5
    assert max(pauses) <= 6
    watch.sees_it_start()
    assert watch.memory.crash_loop is None
    for _ in range(LIMITS.restarts - 2):
        watch.sees(ABSENT, 60)
        watch.sees_it_start()
    assert watch.memory.crash_loop is None, "what it waited for has spent nothing of its budget"


def test_each_further_death_waits_longer():
    watch, pauses = running(), []
    for _ in range(LIMITS.restarts):
        died_at = watch.now
        while not kinds(watch.sees(ABSENT), Start):
            assert watch.wake_at > watch.now
            watch.now = watch.wake_at
        pauses.append(watch.now - died_at)
        watch.sees_it_start()
    assert pauses == [0.0, 0.5, 1.0, 2.0]


def test_while_it_starts_nothing_else_is_started():
    watch = Watch()
    watch.sees(ABSENT)
    assert watch.sees(STARTING, 1) == []
    assert watch.sees(STARTING, 60) == []


def test_a_start_that_takes_too_long_is_ended():
    watch = Watch()
    watch.sees(ABSENT)
    assert kinds(watch.sees(STARTING, 120), Kill) == [Kill(pid=7, reason="did not serve within 120s")]


def test_one_that_somebody_else_started_is_held_to_the_same_time():
    watch = Watch()
    assert watch.sees(STARTING) == []
    assert kinds(watch.sees(STARTING, 120), Kill)


def test_a_start_is_verified_after_it_serves_lives_and_one_whole_interval_has_passed():
    watch = Watch()
    watch.sees(ABSENT)
    assert watch.sees(UP, 2) == [Phase(id="id-1", phase="up-detected")]
    assert kinds(watch.sees(replace(UP, beats=2), 59), Phase) == []
    assert kinds(watch.sees(replace(UP, beats=3), 1), Phase) == [Phase(id="id-1", phase="verified")]


def test_another_process_has_not_lived_through_what_the_first_did():
    watch = Watch()
    watch.sees(ABSENT)
    watch.sees(UP)
    assert kinds(watch.sees(replace(UP, pid=8), 60), Phase) == [Phase(id="id-1", phase="up-detected")]
    assert kinds(watch.sees(replace(UP, pid=8, beats=9), 60), Phase) == [Phase(id="id-1", phase="verified")]


def test_one_that_dies_before_it_is_verified_is_a_failed_revive():
    watch = Watch()
    watch.sees(ABSENT)
    watch.sees(UP)
    actions = watch.sees(ABSENT, 10)
    assert Phase(id="id-1", phase="failed", error="exit code 2") in actions
    assert kinds(actions, Start)


def test_starts_that_never_come_to_serve_end_in_the_crash_loop_soon():
    watch, starts = Watch(), 0
    for _ in range(20):
        starts += len(kinds(watch.sees(ABSENT, 1), Start))
    assert starts == LIMITS.failed_starts
    assert watch.memory.crash_loop.reason == "it failed to start 3 times: exit code 2"


def test_deaths_end_in_the_crash_loop_when_the_budget_is_spent():
    watch, starts = running(), 0
    for _ in range(20):
        starts += len(kinds(watch.sees(ABSENT, 5), Start))
        if watch.memory.crash_loop is None:
            watch.sees_it_start()
    assert starts == LIMITS.restarts


def test_the_window_slides():
    watch = running()
    for _ in range(20 * LIMITS.restarts):
        assert kinds(watch.sees(ABSENT, LIMITS.window_s / LIMITS.restarts), Start), "slow enough, it goes on for ever"
        watch.sees_it_start()


def test_a_crash_loop_is_escalated_once_and_nothing_is_tried_any_more():
    watch = Watch(memory=Memory(budget=Budget(failures=(NOW, NOW, NOW))))
    assert kinds(watch.sees(ABSENT), Escalate) == [
        Escalate(key="1000000", text="it failed to start 3 times: exit code 2")
    ]
    for sight in (ABSENT, STARTING, UP, ABSENT):
        assert watch.sees(sight, 10_000) == []


def test_an_escalation_that_did_not_get_to_the_disk_is_made_again():
    watch = Watch(memory=Memory(crash_loop=CrashLoop(at=NOW, reason="why")))
    assert watch.sees(ABSENT, 5) == [Escalate(key="1000000", text="why")]
    assert watch.sees(ABSENT, 5) == []


def test_a_clock_that_is_set_back_neither_blocks_restarts_nor_forgets_them():
    watch = running()
    watch.sees(ABSENT)
    watch.sees_it_start()
    assert kinds(watch.sees(ABSENT, -86_400), Start) == []
    assert watch.wake_at - watch.now <= LIMITS.longest_backoff_s
    assert len(watch.memory.budget.restarts) == 1


def test_a_counter_that_stands_still_is_suspected_and_at_a_later_look_killed():
    watch = running()
    seen = [watch.sees(replace(UP, beats=20), 60) for _ in range(4)]
    assert [kinds(actions, (Note, Kill)) for actions in seen[:2]] == [[], []]
    assert kinds(seen[2], Note)[0].event == "hang.suspected"
    assert kinds(seen[3], Kill)[0].pid == 7


def test_a_killed_hang_is_a_death_like_any_other():
    watch = running()
    for _ in range(4):
        watch.sees(replace(UP, beats=20), 60)
    assert kinds(watch.sees(ABSENT, 1), Start) == [Start(id=f"id-{watch.ids}", crashed=True)]
    assert watch.memory.stall is None


def test_a_counter_that_rises_again_clears_the_suspicion():
    watch = running()
    for _ in range(3):
        watch.sees(replace(UP, beats=20), 60)
    assert watch.memory.stall.suspected
    assert kinds(watch.sees(replace(UP, beats=21), 60), Note)[0].event == "hang.resumed"
    assert not watch.memory.stall.suspected


def test_a_quiet_window_keeps_it_from_both():
    watch = running()
    watch.quiet = True
    for _ in range(10):
        assert not kinds(watch.sees(replace(UP, beats=20), 60), Kill)
        assert not watch.memory.stall.suspected
    watch.quiet = False
    assert kinds(watch.sees(replace(UP, beats=20), 60), Note)[0].event == "hang.suspected"


def test_a_machine_that_slept_is_no_hang():
    watch = running()
    assert kinds(watch.sees(replace(UP, beats=20), 8 * 3600), (Note, Kill)) == []
    assert kinds(watch.sees(replace(UP, beats=21), 60), (Note, Kill)) == []


def test_many_looks_at_once_are_one_look():
    watch = running()
    watch.sees(replace(UP, beats=20), 170)
    for _ in range(50):
        assert kinds(watch.sees(replace(UP, beats=20), 0.5), (Note, Kill)) == []


def test_a_budget_that_cannot_be_read_is_a_spent_one():
    watch = Watch(memory=Memory(budget=UNREADABLE))
    actions = watch.sees(ABSENT)
    assert not kinds(actions, Start)
    assert kinds(actions, Escalate)
    assert Watch(memory=Memory(budget=UNREADABLE)).sees(UP) == [], "as long as it runs, nothing is lost"


def test_a_start_that_cannot_be_read_is_never_verified_nor_repeated():
    watch = Watch(memory=Memory(budget=Budget(), revive=UNREADABLE))
    assert kinds(watch.sees(UP), Phase) == []
    assert kinds(watch.sees(replace(UP, beats=2), 3600), Phase) == []
    assert not kinds(watch.sees(ABSENT), Start)


def test_a_crash_loop_that_cannot_be_read_stands():
    watch = Watch(memory=Memory(budget=Budget(), crash_loop=UNREADABLE))
    assert watch.sees(ABSENT) == []


def test_a_count_that_cannot_be_read_is_counted_anew():
    watch = Watch(memory=Memory(budget=Budget(), stall=UNREADABLE))
    assert watch.sees(UP) == []
    assert watch.memory.stall == Stall(pid=7, beats=1, since=NOW, looked_at=NOW)


sights = st.one_of(
    st.just(ABSENT),
    st.builds(Sight, state=st.just("starting"), pid=st.integers(1, 3)),
    st.builds(Sight, state=st.just("up"), pid=st.integers(1, 3), beats=st.integers(1, 3)),
)
looks = st.lists(st.tuples(sights, st.floats(-5, 200), st.booleans()), max_size=60)


@given(looks)
def test_never_more_restarts_in_a_window_than_the_budget(seen: list[tuple[Sight, float, bool]]):
    watch, restarts = Watch(), []
    for sight, after_s, quiet in seen:
        watch.quiet = quiet
        actions = watch.sees(sight, max(after_s, 0.0))
        restarts += [watch.now for start in kinds(actions, Start) if start.crashed]
        assert sum(at > watch.now - LIMITS.window_s for at in restarts) <= LIMITS.restarts


@given(looks)
def test_verified_always_means_up_detected_alive_and_a_whole_interval(seen: list[tuple[Sight, float, bool]]):
    watch, up_at, pid = Watch(), {}, {}
    for sight, after_s, quiet in seen:
        watch.quiet = quiet
        for phase in kinds(watch.sees(sight, after_s), Phase):
            if phase.phase == "up-detected":
                up_at[phase.id], pid[phase.id] = watch.now, sight.pid
            if phase.phase == "verified":
                assert sight.state == "up"
                assert pid[phase.id] == sight.pid
                assert watch.now - up_at[phase.id] >= LIMITS.interval_s


@given(looks)
def test_every_crash_loop_is_escalated_exactly_once(seen: list[tuple[Sight, float, bool]]):
    watch, escalations = Watch(), 0
    for sight, after_s, quiet in seen:
        watch.quiet = quiet
        escalations += len(kinds(watch.sees(sight, after_s), Escalate))
        assert escalations == (watch.memory.crash_loop is not None)


@given(looks)
def test_the_next_look_is_never_put_off_longer_than_an_interval(seen: list[tuple[Sight, float, bool]]):
    watch = Watch()
    for sight, after_s, quiet in seen:
        watch.quiet = quiet
        watch.sees(sight, after_s)
        assert watch.now <= watch.wake_at <= watch.now + LIMITS.interval_s
