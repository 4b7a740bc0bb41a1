"""What becomes of candidates and deviations is told with the details of turn events, and to nobody else."""

from collections.abc import Callable
from typing import Any

from agent_runtime.model.turn import DetailedEvent
from agent_runtime.service.streams import event_message
from agent_runtime.store import turn_reads
from agent_runtime.workspace.deviations import Resolution
from agent_runtime.workspace.model import PageDraft
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import call
from turnkeeper.storage.database import Database
from turnkeeper.v1 import agent_runtime_pb2 as wire

Begin = Callable[..., Any]


def told(database: Database) -> list[DetailedEvent]:
    return database.submit(lambda connection: turn_reads.detailed_events_after(connection, 0)).result()


async def test_a_proposal_a_contradiction_and_their_decision_are_told(
    workspace: Workspace, database: Database, begin: Begin
) -> None:
    await workspace.authors.put(PageDraft(page_id="plan", title="Plan", body="Plots: 42"))
    turn = begin(task_name="digest", named="research-sweep")
    await workspace.propose(call(turn), PageDraft(page_id="plan", title="Plan", body="Plots: 43"))
    proposed, contradicted = told(database)
    assert [(one.state, one.channel, one.task_name) for one in (proposed, contradicted)] == [
        ("PROPOSED", "general", "digest"),
        ("CONTRADICTED", "general", "digest"),
    ]
    (candidate_id,), (deviation_id,) = proposed.held_by, contradicted.held_by
    assert candidate_id.startswith("c-")
    assert deviation_id.startswith("d-")
    await workspace.authors.resolve(Resolution(deviation_id=deviation_id, accept=False), "page/web")
    await workspace.authors.decide(candidate_id, accept=False, note="", via="page/web")
    kept, rejected = told(database)[2:]
    assert (kept.state, kept.held_by, kept.summary) == ("REVIEWED", (deviation_id,), "kept: Plots: 43")
    assert (rejected.state, rejected.held_by, rejected.summary) == ("REVIEWED", (candidate_id,), "rejected: Plan")
    shown = event_message(kept, "i")
    assert (shown.state, list(shown.about), list(shown.held_by)) == (wire.TurnEvent.REVIEWED, [deviation_id], [])
    newest = database.submit(lambda connection: turn_reads.newest_event(connection, turn.turn_id)).result()
    assert newest is None, "no review is a state of the turn"
