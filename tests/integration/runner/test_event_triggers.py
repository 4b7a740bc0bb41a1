"""Events: who fires for them, once each, and what the ledger says of every trigger."""

import json
import sqlite3
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from task_runner.dispatcher.dispatcher import claim
from task_runner.dispatcher.outcomes import News, record_news
from task_runner.model.events import Event
from task_runner.planner.ledger import TurnState
from task_runner.scheduler.events import take_in
from task_runner.scheduler.pruner import Pruner
from task_runner.store.events import _LISTENERS, _WANTED
from tests.integration.runner.conftest import Rig
from tests.integration.runner.emitting import bridged, create, emit, fires, ledger, settle, told
from tests.integration.runner.scripted_runtime import Peer, State
from tests.support.clock import START
from turnkeeper.errors import MachineTrouble
from turnkeeper.v1 import schedules_pb2 as wire


async def test_an_event_fires_the_tasks_whose_filters_agree_and_its_fire_tells_of_it(rig: Rig, peer: Peer) -> None:
    await create(rig, "main", on="demo", filters=["branch=main"])
    await create(rig, "any", on="demo")
    await create(rig, "other", on="another")
    answer = await emit(rig, data_json='{"branch":"dev"}')
    assert (answer.matched, answer.duplicate) == (1, False)
    async with rig.running():
        (request,) = await peer.saw(1)
    assert (request.task_name, request.kind) == ("any", "event")
    assert request.fire_id.endswith(f"~e{answer.event_id}")
    said = json.loads(request.prompt.removeprefix("p\n\nEvent: "))
    assert (said["event"], said["data"]) == ("demo", {"branch": "dev"})
    assert await ledger(rig, "main") == await ledger(rig, "other") == []


async def test_an_event_told_again_under_its_id_is_taken_once(rig: Rig) -> None:
    await create(rig, "one", on="demo", overlap="queue")
    await create(rig, "two", on="other", overlap="queue")
    assert not (await emit(rig, event_id="build-1")).duplicate
    again = await emit(rig, event_id="build-1")
    assert (again.duplicate, again.matched) == (True, 0)
    assert not (await emit(rig, name="other", event_id="build-1")).duplicate, "another event"
    assert len(await ledger(rig, "one")) == len(await ledger(rig, "two")) == 1


async def test_what_happened_before_a_task_listened_is_none_of_its_business(rig: Rig) -> None:
    await create(rig, "late", on="turn_end")
    before = told()
    before.at.FromDatetime(rig.clock.now() - timedelta(seconds=1))
    await bridged(rig, before)
    assert await ledger(rig, "late") == []
    rig.clock.advance(-3600)  # from when on it listens says nothing on a clock that was set back
    await bridged(rig, told(sequence=2))
    assert await ledger(rig, "late") == [("pending", "", 1)]


async def test_a_task_is_written_out_as_it_was_declared(rig: Rig) -> None:
    await create(rig, "only", on="demo", filters=["a=b", "c~=d"], debounce="5s")
    await create(rig, "both", on="turn_end", every="5m")
    only, both = await rig.task("only"), await rig.task("both")
    assert (only.kind, only.schedule, only.spec.debounce) == ("on", "on demo", "5s")
    assert (both.kind, both.schedule, both.spec.debounce) == ("hybrid", "every 5m, exactly or on turn_end", "30s")
    assert not only.HasField("next_fire_at")
    assert both.HasField("next_fire_at")
    again = await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=[only.spec, both.spec]))
    assert [done.action for done in again.applied] == ["unchanged"] * 2
    preview = await rig.service.preview_schedule(wire.PreviewScheduleRequest(name="only"))
    assert (preview.on, list(preview.nominals)) == ("demo", [])


async def test_a_fire_of_an_event_is_sent_until_it_is_accepted_however_late(rig: Rig, peer: Peer) -> None:
    await create(rig, "one", on="demo", catch_up="skip")
    await emit(rig)
    await rig.pass_time(86_400)
    async with rig.running():
        await rig.trail.saw("fire.accepted")
    assert await ledger(rig, "one") == [("accepted", "", 1)]


async def test_what_comes_during_a_turn_is_one_fire_between_turns(rig: Rig, peer: Peer) -> None:
    await create(rig, "one", on="demo")
    await emit(rig)
    async with rig.running():
        await rig.trail.saw("fire.accepted")
        for _ in range(3):
            await emit(rig)
        assert await ledger(rig, "one") == [("accepted", "", 1), ("pending", "", 1), ("coalesced", "it", 2)]
        first = (await fires(rig, "one"))[0].fire_id
        await peer.play(first, State.SUCCEEDED)
        await rig.trail.saw("fire.accepted", 2)
    assert [request.fire_id for request in peer.received] == [fire.fire_id for fire in await fires(rig, "one")]


async def test_a_recurring_fire_is_a_recorded_skip_while_an_event_waits_to_be_sent(rig: Rig, peer: Peer) -> None:
    await create(rig, "both", on="demo", every="60s")
    await rig.pass_time(60)
    async with rig.running():
        await rig.trail.saw("fire.accepted")
        await rig.pass_time(60)
        assert await ledger(rig, "both") == [("accepted", "", 1), ("waiting", "", 1)]
        await emit(rig)
        await rig.pass_time(60)
        expected = [("accepted", "", 1), ("skipped", "queued", 2), ("pending", "", 1)]
        assert await ledger(rig, "both") == expected, "what was due before, and what came due since, gave way"
        await peer.play(peer.received[0].fire_id, State.SUCCEEDED)
        await rig.trail.saw("fire.accepted", 2)
        await peer.play((await fires(rig, "both"))[-1].fire_id, State.SUCCEEDED)
        await rig.trail.saw("fire.settled", 2)
        await rig.pass_time(60)
    assert (await ledger(rig, "both"))[-1][0] != "skipped", "its schedule goes on"


async def test_the_clock_and_the_events_of_a_hybrid_are_debounced_together(rig: Rig, peer: Peer) -> None:
    await create(rig, "both", on="demo", every="60s")
    await rig.pass_time(60)
    async with rig.running():
        await settle(rig, peer, "both")
        await rig.pass_time(20)
        await emit(rig)
        await rig.pass_time(20)
        await emit(rig)
        rig.dispatcher.wake()  # as the daemon does after each command
        await settle(rig, peer, "both", count=2)
        await rig.pass_time(20)
        first, second = await fires(rig, "both")
        history = await rig.history("both")
        assert history == [
            ("succeeded", "", 1),
            ("coalesced", first.fire_id, 1),
            ("succeeded", "", 1),
            ("skipped", f"debounced: {second.fire_id}", 1),
        ], "20 s after the clock's fire, and 20 s before its next: one fire for both"
        told = await rig.service.explain_fire(wire.ExplainFireRequest(name="both"))
        assert any(f"It came within the debounce of {second.fire_id}" in line for line in told.lines), told.lines
        await rig.pass_time(60)
        await settle(rig, peer, "both", count=3)
    assert [fire.kind for fire in await fires(rig, "both")] == ["scheduled", "event", "scheduled"]


async def test_an_event_and_a_time_of_one_second_are_one_fire_whichever_comes_first(rig: Rig) -> None:
    for name in ("event-first", "clock-first"):
        await create(rig, name, on=name, every="60s", debounce="8s")
    rig.clock.advance(60)
    await emit(rig, "event-first")
    await rig.service.tick(wire.TickRequest())
    await emit(rig, "clock-first")
    assert [len(await fires(rig, name)) for name in ("event-first", "clock-first")] == [1, 1]
    await create(rig, "apart", on="demo", every="60s", debounce="0s")
    rig.clock.advance(60)
    await rig.service.tick(wire.TickRequest())
    await emit(rig)
    assert [fire.kind for fire in await fires(rig, "apart")] == ["scheduled", "event"], "without a debounce, two"


async def test_a_chained_event_cancels_the_turn_before_it_at_once(rig: Rig, peer: Peer) -> None:
    await create(rig, "one", on="task.succeeded", filters=["task~=^s"], overlap="cancel-running")
    for name in ("s1", "s2"):
        await create(rig, name, on="demo", filters=[f"n={name}"])
    async with rig.running("dispatcher", "follower", "canceller"):
        for number, name in enumerate(("s1", "s2")):
            await emit(rig, data_json=f'{{"n":"{name}"}}')
            await settle(rig, peer, name, count=2 * number + 1)
        await rig.trail.saw("fire.asked_to_end")
    assert peer.cancelled == [(await fires(rig, "one"))[0].fire_id]


async def test_a_pause_records_triggers_in_one_entry_and_withdraws_what_was_not_sent(rig: Rig) -> None:
    await create(rig, "one", on="demo")
    await emit(rig)
    await rig.service.pause_task(wire.PauseTaskRequest(name="one"))
    for _ in range(3):
        await emit(rig)
    assert await ledger(rig, "one") == [("skipped", "paused", 1), ("skipped", "paused", 3)]
    await rig.service.resume_task(wire.ResumeTaskRequest(name="one"))
    await emit(rig)
    assert (await ledger(rig, "one"))[-1] == ("pending", "", 1)


async def test_a_limit_ends_a_task_and_with_it_what_it_listens_for(rig: Rig, peer: Peer) -> None:
    await create(rig, "one", on="demo", max_fires=1)
    await emit(rig)
    async with rig.running():
        await settle(rig, peer, "one")
    assert (await rig.task("one")).state == "done"
    assert (await emit(rig)).matched == 0


async def test_a_task_that_expires_listens_no_more(rig: Rig) -> None:
    await create(rig, "one", on="demo", expires_at="1h")
    await rig.pass_time(1)
    await rig.pass_time(3600)
    assert (await rig.task("one")).state == "expired"


async def test_an_edit_keeps_what_waits_for_the_same_event_and_lets_go_of_another(rig: Rig) -> None:
    await create(rig, "one", on="demo")
    await emit(rig)
    spec = (await rig.task("one")).spec
    spec.filters.append("a=b")
    await rig.service.update_task(wire.UpdateTaskRequest(name="one", spec=spec))
    assert await ledger(rig, "one") == [("pending", "", 1)]
    spec.on = "other"
    await rig.service.update_task(wire.UpdateTaskRequest(name="one", spec=spec))
    assert await ledger(rig, "one") == [("skipped", "superseded", 1)]


@pytest.mark.sqlite_only("PostgreSQL chooses a plan by what the tables hold")
@pytest.mark.parametrize("query", [_LISTENERS.params(names='["demo", "other"]'), _WANTED], ids=["listeners", "wanted"])
async def test_who_does_not_listen_costs_an_event_nothing(rig: Rig, query: Any) -> None:
    """The lookups read an index that holds listeners alone, never the tasks."""

    def plans(session: Any) -> list[str]:
        connection = session.events._connection
        said = query.compile(connection).construct_expanded_state()
        explained = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {said.statement}", said.positional_parameters)
        return [row[-1] for row in explained]

    lines = [line for line in await rig.store.run(plans) if "tasks" in line]
    assert lines
    assert all("INDEX tasks_listens" in line for line in lines), lines


async def test_a_task_that_cannot_be_triggered_is_quarantined_and_the_others_fire(rig: Rig) -> None:
    one = await create(rig, "broken", on="demo", filters=["k=v"])
    await create(rig, "whole", on="demo")

    def spoil(session: Any) -> None:
        spoilt = text("UPDATE tasks SET definition = replace(definition, 'k=v', 'k~=(') WHERE id = :id")
        session.events._connection.execute(spoilt, {"id": one})

    await rig.store.run(spoil)
    await emit(rig)
    assert (await rig.task("broken")).state == "quarantined"
    assert await ledger(rig, "whole") == [("pending", "", 1)]


async def test_a_store_that_cannot_be_read_for_a_moment_quarantines_no_task(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(rig, "whole", on="demo")
    trouble = sqlite3.OperationalError("disk I/O error")
    trouble.sqlite_errorcode = sqlite3.SQLITE_IOERR

    def fail(*_args: Any) -> Any:
        raise OperationalError("SELECT", {}, trouble) from trouble

    with monkeypatch.context() as broken:
        broken.setattr("task_runner.store.events.Events.standings", fail)
        with pytest.raises(MachineTrouble):
            await emit(rig)
    assert (await rig.task("whole")).state == "active"
    await emit(rig)
    assert await ledger(rig, "whole") == [("pending", "", 1)]


async def test_explain_tells_what_became_of_every_trigger(rig: Rig, peer: Peer) -> None:
    await create(rig, "one", on="demo", filters=["n~=."], debounce="30s")
    await create(rig, "both", on="demo", every="60s")
    for number in range(3):
        await emit(rig, data_json=f'{{"n":{number}}}', event_id=f"e{number}")
        rig.clock.advance(1)
    await rig.service.pause_task(wire.PauseTaskRequest(name="both"))
    await emit(rig)

    async def explained(name: str, at: float | None = None) -> tuple[str, str]:
        when = "" if at is None else (START + timedelta(seconds=at)).isoformat()
        answer = await rig.service.explain_fire(wire.ExplainFireRequest(name=name, at=when))
        return answer.verdict, "\n".join(answer.lines)

    fire = (await fires(rig, "one"))[0].fire_id
    verdict, said = await explained("one", 0)
    assert verdict == "pending"
    assert f"{fire} was triggered by demo (e0)" in said
    assert "30s after the event by its debounce" in said
    verdict, said = await explained("one")
    assert verdict == "coalesced"
    assert "2 triggers from 2026-03-02T09:00:01Z to 2026-03-02T09:00:02Z" in said
    assert f"was merged into {fire}" in said
    assert "It fires for every demo with n~=." in said, "the newest event may not have matched"
    verdict, said = await explained("one", 20)
    assert verdict == "no_event"
    assert "It fires for every demo with n~=., once in 30s, when that window closes" in said
    _, said = await explained("both", 3)
    assert "1 trigger at 2026-03-02T09:00:03Z" in said
    assert "skipped (paused). The task was paused at that time." in said


class Rules:
    """What the rules say of one task, in plain words, to compare the ledger with."""

    def __init__(self, *, queue: bool, debounce: float) -> None:
        self.queue, self.debounce = queue, debounce
        self.fires = self.coalesced = self.skipped = 0
        self.opened: float | None = None
        self.unsent: list[float] = []  # the events of fires that were not sent yet, oldest first
        self.under_way = False

    def hears(self, at: float) -> None:
        in_window = self.opened is not None and at < self.opened + self.debounce
        if in_window or (self.unsent and not self.queue):
            self.coalesced += 1
        elif self.fires == 60 and not self.queue:
            self.skipped += 1
        else:
            self.fires += 1
            self.opened = at
            self.unsent.append(at)

    def passes(self, now: float) -> None:
        """One turn ends, and the next fire goes if its window is closed."""
        self.under_way = False
        if self.unsent and self.unsent[0] + self.debounce <= now:
            self.unsent.pop(0)
            self.under_way = True


async def turns_pass(rig: Rig) -> None:
    """What is under way ends well, then what is ready is sent and runs."""
    now = rig.clock.now()

    def work(session: Any) -> None:
        running = session.fires.open_fires(0, 1000)
        ended = [News(fire.fire_id, 1, TurnState.SUCCEEDED, now, "turn", "") for fire in running]
        record_news(session, ended, now)
        sent = claim(session, now, 1000, 0, single=False)
        record_news(session, [News(each.fire.fire_id, 1, TurnState.STARTED, now, "turn", "") for each in sent], now)

    await rig.store.run(work)


async def test_a_thousand_events_in_a_second_come_to_what_the_rules_say(rig: Rig) -> None:
    """Ten tasks, each with filters, debounce and overlap of its own; a turn takes a twentieth of a second."""
    tasks: dict[str, Rules] = {}
    for number in range(10):
        queue, debounce = number % 3 == 0, (0, 1, 2)[number // 4]
        name = f"t{number}"
        filters = [f"n~=[{number}-9]$", *(["even=true"] if number % 2 else [])]
        await create(
            rig, name, on="demo", filters=filters, debounce=f"{debounce}s", overlap="queue" if queue else "coalesce"
        )
        tasks[name] = Rules(queue=queue, debounce=debounce)
    begin, matched = rig.clock.now(), dict.fromkeys(tasks, 0)
    for first in range(0, 1000, 50):
        events = []
        for n in range(first, first + 50):
            at = begin + timedelta(milliseconds=n)
            events.append(Event(name="demo", id=f"e{n}", at=at, data_json=json.dumps({"n": n, "even": n % 2 == 0})))
            for number, (name, rules) in enumerate(tasks.items()):
                if n % 10 >= number and (n % 2 == 0 or number % 2 == 0):
                    rules.hears(n / 1000)
                    matched[name] += 1
        rig.clock.advance(0.05)
        now = rig.clock.now()
        heard = await rig.store.run(partial(take_in, events=events, now=now))
        assert heard.fresh == 50
        assert (await rig.store.run(partial(take_in, events=events, now=now))).fresh == 0, "told twice, taken once"
        await turns_pass(rig)
        for rules in tasks.values():
            rules.passes((first + 50) / 1000)
    for name, rules in tasks.items():
        entries = await ledger(rig, name)
        found = Counter({"fires": 0, "coalesced": 0, "skipped": 0})
        for outcome, _, count in entries:
            found[outcome if outcome in found else "fires"] += count
        assert found == {"fires": rules.fires, "coalesced": rules.coalesced, "skipped": rules.skipped}, name
        assert found.total() == matched[name]


async def test_what_is_pruned_is_forgotten_with_what_triggered_it(rig: Rig) -> None:
    await create(rig, "one", on="demo")
    await rig.service.pause_task(wire.PauseTaskRequest(name="one"))
    for number in range(2):
        await emit(rig, event_id=f"e{number}")

    def kept(session: Any) -> list[int]:
        tables = ("fires", "triggers", "events")
        query = "SELECT count(*) FROM "
        return [session.events._connection.exec_driver_sql(query + table).scalar() for table in tables]

    assert await rig.store.run(kept) == [1, 1, 2]
    rig.clock.advance(91 * 86_400)
    await Pruner(rig.store, clock=rig.clock, log=rig.trail, keep=timedelta(days=90)).pass_over()
    assert await rig.store.run(kept) == [0, 0, 0]


async def test_retries_budgets_and_read_only_hold_for_fires_of_events(rig: Rig, peer: Peer) -> None:
    await create(rig, "one", on="demo", retries=1, read_only=True, budget={"turns_per_day": 2})
    await emit(rig)
    async with rig.running():
        (request,) = await peer.saw(1)
        assert request.read_only
        await peer.play(request.fire_id, State.FAILED)
        await rig.trail.saw("fire.retried")
        rig.clock.advance(30)
        rig.dispatcher.wake()
        await peer.saw(2)
        await peer.play(request.fire_id, State.SUCCEEDED, attempt=2)
        await rig.trail.saw("fire.settled")
    assert [(each.fire_id, each.attempt) for each in peer.received] == [(request.fire_id, 1), (request.fire_id, 2)]
    task = await rig.task("one")
    assert (task.state, task.paused_note.partition(",")[0]) == ("paused", "budget: turns_per_day is 2")
