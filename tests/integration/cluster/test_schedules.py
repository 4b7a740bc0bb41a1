"""Units of several sessions, under schedules that seeds draw: what they leave is what some order of them leaves.

`make schedules SEEDS=0:300` runs many. A failing schedule prints its units and its decisions.
`Theatre.scheduled` replays these.
"""

import itertools
import os
import random  # noqa: TID251  seeded, so that a schedule can be repeated
from collections.abc import Iterator, Sequence

import pytest

from task_runner.store import store
from tests.integration.cluster.scheduling import Schedule, Scheduler, Session, Turnstile
from tests.integration.cluster.test_interleavings import CLAIMS, UNITS, Stage, party
from tests.support.postgres import Server
from turnkeeper.storage.server.url import in_schema

FIRST, LAST = map(int, os.environ.get("SEEDS", "0:12").split(":"))
MOST_SESSIONS = 4


class Theatre(Stage):
    """A stage with as many sessions as a schedule has units."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.orders: dict[tuple[str, ...], str] = {}
        self.parties = [party(in_schema(url, "runner"), gate=Turnstile()) for _ in range(MOST_SESSIONS)]
        for each in self.parties:  # the first record of a session begins a chain
            self.set_back()
            each.begin(UNITS["edit"]).result(30)
        sessions = [Session(each.gate, each.pid, each.begin) for each in self.parties]
        self._scheduler = Scheduler(sessions, self._sql)

    def scheduled(self, names: Sequence[str], *, seed: int = 0, decisions: Sequence[int] = ()) -> tuple[Schedule, str]:
        """Return the schedule that was run, and what it left."""
        self.set_back()
        made = self._scheduler.run([UNITS[name] for name in names], seed=seed, decisions=decisions)
        return made, self.left()

    def in_order(self, *names: str) -> str:
        """Return the store's content after these units have run one after the other."""
        if names not in self.orders:
            self.orders[names] = self.one_by_one(*(UNITS[name] for name in names))
        return self.orders[names]

    def explains(self, names: Sequence[str], made: Schedule, left: str) -> bool:
        """Return whether some order of the units leaves the same. First try that of their ends."""
        orders = [tuple(names[number] for number in made.ended)]
        # What a claim passes over, because another session has it, the claim finds at its next look.
        claims = [number for number, name in enumerate(names) if name in CLAIMS]
        for count in range(len(claims) + 1):
            for passed in itertools.combinations(claims, count):
                kept = [name for number, name in enumerate(names) if number not in passed]
                orders += itertools.permutations(kept)
        return not made.wrong and any(self.in_order(*order) == left for order in orders)

    def close(self) -> None:
        for each in self.parties:
            each.database.close()
        super().close()


@pytest.fixture(scope="module")
def theatre(postgres_server: Server | None) -> Iterator[Theatre]:
    if postgres_server is None:
        pytest.skip("units of several sessions meet on a server: --database postgres")
    made = Theatre(postgres_server.create())
    yield made
    made.close()


def drawn(seed: int) -> list[str]:
    """Return the units of a seed. Ten seeds in a row have the same ones, in ten schedules."""
    drawing = random.Random(f"units {seed // 10}")
    return drawing.choices(list(UNITS), k=drawing.randint(2, MOST_SESSIONS))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_units_under_a_schedule_leave_what_some_order_of_them_leaves(theatre: Theatre, seed: int) -> None:
    names = drawn(seed)
    made, left = theatre.scheduled(names, seed=seed)
    assert theatre.explains(names, made, left), f"{names}, {made}\n{left}"


@pytest.mark.parametrize("seed", range(3))
def test_a_schedule_is_replayed_by_its_decisions(theatre: Theatre, seed: int) -> None:
    """Use two sessions, of which at most one waits. Among several that wait for a lock, the server would choose."""
    names = ["pause", "edit"]
    made, left = theatre.scheduled(names, seed=seed)
    again, same = theatre.scheduled(names, seed=99, decisions=made.decisions)
    assert (again.decisions, again.ended, same) == (made.decisions, made.ended, left)
    assert made.waited, "a session waited for a lock of another"


def test_a_lock_that_is_taken_out_is_missed(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "of_server", lambda _connection: False)
    names = ["plan", "pause", "edit"]
    runs = (theatre.scheduled(names, seed=seed) for seed in range(40))
    assert any(not theatre.explains(names, made, left) for made, left in runs)
