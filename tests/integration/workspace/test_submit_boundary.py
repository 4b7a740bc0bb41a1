"""The submit boundary: who writes and from where decides what a write is, whatever the writer says."""

import ast
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from agent_runtime.model.turn import TurnContext
from agent_runtime.store.schema import (
    attachments,
    cancels,
    candidates,
    deviations,
    effects,
    memory,
    page_links,
    page_versions,
    pages,
    revalidations,
)
from agent_runtime.workspace.model import Acceptance, Author, PageDraft, Rejection, SummaryDraft
from agent_runtime.workspace.submit import stamp, submit
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import Begin, Told, call
from tests.support.clock import ManualClock
from tests.support.workspace import get_page, list_candidates, put_page
from turnkeeper.errors import Conflict, Denied, InvalidInput, NotFound
from turnkeeper.storage.database import Database

PAGE = PageDraft(page_id="garden", title="Garden", body="Slugs.", tags=("b", "a", "a"))
PACKAGE = Path(__file__).parents[3] / "agent_runtime"


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def test_only_the_submit_boundary_writes_pages_and_candidates() -> None:
    for path, tree in trees().items():
        writes = {
            node.args[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"insert", "update", "delete", "upsert"}
            and node.args and isinstance(node.args[0], ast.Name)
        }  # fmt: skip
        assert path.name == "submit.py" or not writes & {"pages", "candidates", "page_versions"}, path
        own = {"deviations.py": {"deviations"}, "revalidation.py": {"revalidations", "page_links"}}
        own["pages.py"] = {"attachments"}
        assert not writes & set().union(*own.values()) - own.get(path.name, set()), path


def test_what_writes_beside_pages_is_called_by_the_submit_boundary_alone() -> None:
    writers = {"record", "close", "close_of_candidate", "put_attachment"}
    writers |= {"set_links", "add_links", "queue_outdated", "queue_derived", "settle_item", "keep_versions"}
    modules = {"records", "queue", "deviations", "revalidation", "attachments"}
    for path in (PACKAGE / "workspace").glob("*.py"):
        called = {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(trees()[path])
            if (isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in modules)
            or (isinstance(node, ast.Name) and node.id in writers)
        }
        inside = {"submit.py", "verdicts.py", "deviations.py", "revalidation.py", "attachments.py"}
        assert path.name in inside or not called & writers, path
    boundary = {"verdicts", "submit"}
    for path, tree in trees().items():
        imported = {
            (node.module or "").rpartition(".")[2]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agent_runtime.workspace.")
        }
        assert path.parent.name == "workspace" or not imported & boundary, path


async def test_an_authors_page_is_authored_and_canonical_and_its_past_is_kept(
    workspace: Workspace, database: Database
) -> None:
    first = await put_page(workspace, PAGE)
    assert (first.origin, first.lifecycle, first.version, first.tags) == ("authored", "canonical", 1, ("a", "b"))
    second = await put_page(workspace, PageDraft(page_id="garden", title="Garden", body="No slugs."))
    assert second.version == 2
    kept = await database.run(lambda connection: connection.execute(select(page_versions)).all())
    assert [(row.version, row.body) for row in kept] == [(1, "Slugs.")]


async def test_an_agents_page_is_a_candidate_and_the_page_is_as_before(
    workspace: Workspace, begin: Begin, told: Told
) -> None:
    before = await put_page(workspace, PAGE)
    context = begin(named="conversation", started_by="author")
    outcome = await workspace.propose(call(context), PageDraft(page_id="garden", title="Garden", body="Canonical!"))
    assert (outcome.result["origin"], outcome.result["lifecycle"]) == ("agent-produced", "candidate")
    assert await get_page(workspace, "garden") == before
    event, fields = told[-1]
    assert (event, fields["lifecycle"], fields["turn_id"]) == ("agent.wrote", "candidate", "turn-1")
    assert "Canonical!" not in str(told)
    assert "title" not in fields


async def test_accepting_makes_it_canonical_and_keeps_where_it_came_from(workspace: Workspace, begin: Begin) -> None:
    context = begin(named="conversation", started_by="author")
    made = await workspace.propose(call(context), PageDraft(page_id="pump", title="Pump", body="New."))
    decided = await workspace.authors.decide(made.result["candidate_id"], accept=True, note="good")
    assert (decided.lifecycle, decided.origin, decided.note) == ("canonical", "agent-produced", "good")
    page = await get_page(workspace, "pump")
    assert (page.origin, page.lifecycle, page.body) == ("agent-produced", "canonical", "New.")
    with pytest.raises(Conflict, match="already canonical"):
        await workspace.authors.decide(decided.candidate_id, accept=False)


async def test_accepting_onto_a_page_that_changed_meanwhile_is_a_conflict(workspace: Workspace, begin: Begin) -> None:
    await put_page(workspace, PAGE)
    context = begin(named="conversation", started_by="author")
    made = await workspace.propose(call(context), PageDraft(page_id="garden", title="Garden", body="Old view."))
    await put_page(workspace, PageDraft(page_id="garden", title="Garden", body="The author's newer words."))
    with pytest.raises(Conflict, match="version 2.*version 1"):
        await workspace.authors.decide(made.result["candidate_id"], accept=True)
    assert (await get_page(workspace, "garden")).body == "The author's newer words."
    assert [one.lifecycle for one in await list_candidates(workspace)] == ["candidate"]


async def test_rejecting_writes_nothing_else(workspace: Workspace, begin: Begin) -> None:
    context = begin(named="conversation", started_by="author")
    made = await workspace.propose(call(context), PageDraft(page_id="pump", title="Pump", body="New."))
    decided = await workspace.authors.decide(made.result["candidate_id"], accept=False)
    assert decided.lifecycle == "rejected"
    with pytest.raises(NotFound):
        await get_page(workspace, "pump")
    assert await list_candidates(workspace) == []
    assert await list_candidates(workspace, include_decided=True) == [decided]


async def test_an_agent_cannot_decide(
    workspace: Workspace, begin: Begin, database: Database, clock: ManualClock
) -> None:
    context = begin()
    made = await workspace.propose(call(context), SummaryDraft(channel="general", title="t", body="b"))
    for kind in (Acceptance, Rejection):
        decision = partial(
            submit, draft=kind(candidate_id=made.result["candidate_id"]), caller=context, at=clock.now(), new_id="c-x"
        )
        with pytest.raises(Denied, match="only an author"):
            await database.run(decision)
    assert [one.lifecycle for one in await list_candidates(workspace)] == ["candidate"]


@pytest.mark.parametrize("caller", [None, "author", {"name": "author"}, TurnContext])
def test_a_caller_of_no_known_kind_writes_nothing(caller: Any) -> None:
    with pytest.raises(Denied):
        stamp(caller, PAGE)


async def test_a_run_of_the_same_call_again_writes_once(workspace: Workspace, begin: Begin, told: Told) -> None:
    context = begin()
    draft = SummaryDraft(channel="general", title="t", body="b")
    first, again = [await workspace.propose(call(context), draft) for _ in range(2)]
    assert (first.result, first.repeated, again.repeated) == (again.result, False, True)
    other = await workspace.propose(call(context, 2), draft)
    assert not other.repeated
    assert len(await list_candidates(workspace)) == 2
    assert [fields["repeated"] for _, fields in told] == [False, True, False]


@pytest.mark.parametrize("how", ["cancelled", "ended", "unknown"])
async def test_a_turn_that_is_over_writes_no_more(
    workspace: Workspace, begin: Begin, database: Database, end: Callable[..., None], how: str
) -> None:
    context = begin()
    if how == "cancelled":
        row = {"turn_id": context.turn_id, "reason": "", "at_us": 1}
        await database.run(lambda connection: connection.execute(insert(cancels).values(row)))
    elif how == "ended":
        end(context.turn_id)
    else:
        context = TurnContext(turn_id="nobody", thread_id="t", channel="general", agent="a", category=context.category)
    with pytest.raises(Denied, match="can no longer write"):
        await workspace.propose(call(context), SummaryDraft(channel="general", title="t", body="b"))
    for table in (candidates, effects):
        assert await count(database, table) == 0


async def test_the_world_checks_scopes_itself(workspace: Workspace, begin: Begin) -> None:
    context = begin(read_only=True)
    with pytest.raises(Denied, match="read-only"):
        await workspace.propose(call(context), SummaryDraft(channel="general", title="t", body="b"))
    with pytest.raises(Denied, match=r"page\.propose"):
        await workspace.propose(call(begin("turn-2")), PAGE)
    with pytest.raises(Denied, match="channel general"):
        await workspace.propose(call(begin("turn-3")), SummaryDraft(channel="secret", title="t", body="b"))
    with pytest.raises(Denied, match="channel general"):
        await workspace.read_conversation(call(context), "secret", whole=True)


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (PageDraft(page_id="../x", title="t", body="b"), "page"),
        (PageDraft(page_id="x\n", title="t", body="b"), "page"),
        (PageDraft(page_id="", title="t", body="b"), "page"),
        (PageDraft(page_id="x" * 101, title="t", body="b"), "page"),
        (PageDraft(page_id="x", title="", body="b"), "title"),
        (PageDraft(page_id="x", title="a\nb", body="b"), "title"),
        (PageDraft(page_id="x", title="t", body="a\x00b"), "body"),
        (PageDraft(page_id="x", title="t", body="\ud800"), "body"),
        (PageDraft(page_id="x", title="t", body="x" * (256 * 1024 + 1)), "body"),
        (PageDraft(page_id="x", title="t", body="b", tags=("A B",)), "tags"),
    ],
)
async def test_what_cannot_be_stored_is_refused_by_field(
    workspace: Workspace, begin: Begin, database: Database, draft: PageDraft, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await put_page(workspace, draft)
    assert refused.value.where == field
    with pytest.raises(InvalidInput):
        await workspace.propose(call(begin(named="conversation")), draft)
    assert [await count(database, table) for table in (pages, candidates, effects)] == [0, 0, 0]


BAD_ROWS: list[tuple[Any, dict[str, Any]]] = [
    (pages, {"origin": None}), (pages, {"lifecycle": None}), (pages, {"origin": "made-up"}), (pages, {"lifecycle": "candidate"}),
    (pages, {"origin": "agent-produced"}), (pages, {"origin": "agent-produced", "turn_id": "t"}),
    (candidates, {"origin": None}), (candidates, {"lifecycle": None}), (candidates, {"lifecycle": "canonical"}),
    (candidates, {"turn_id": ""}), (candidates, {"kind": "anything"}), (candidates, {"decided_by": "author"}),
    (memory, {"tier": "mine"}), (memory, {"owner": ""}), (memory, {"written_by": ""}), (memory, {"turn_id": ""}),
    (memory, {"tier": "account"}), (memory, {"origin": "imported"}), (memory, {"origin": None}), (memory, {"form": "yaml"}),
    (memory, {"origin": "authored"}), (memory, {"origin": "agent-produced", "turn_id": ""}),
    *((deviations, {field: None}) for field in ("origin", "lifecycle", "turn_id", "agent")),
    (deviations, {"origin": "authored"}), (deviations, {"lifecycle": "dismissed"}), (deviations, {"turn_id": ""}),
    (deviations, {"agent": ""}), (deviations, {"lifecycle": "kept"}), (deviations, {"decided_by": "author"}),
    (revalidations, {"state": "gone"}), (revalidations, {"state": "settled"}), (revalidations, {"result": "holds"}),
    (revalidations, {"turn_id": "t"}), (revalidations, {"state": "settled", "result": "holds", "settled_at_us": 1}),
    *((attachments, {field: None}) for field in ("origin", "lifecycle")), (attachments, {"origin": "agent-produced"}),
    (attachments, {"lifecycle": "candidate"}), (attachments, {"added_by": ""}), (attachments, {"size": 2}),
    (page_links, {"source": "p"}), (page_links, {"page_version": 0}), (page_links, {"source": "https://a"}),
]  # fmt: skip
GOOD_ROWS: dict[Any, dict[str, Any]] = {
    pages: {
        "page_id": "p", "title": "t", "body": "b", "tags": "[]", "origin": "authored", "lifecycle": "canonical", "version": 1,
        "turn_id": "", "candidate_id": "", "updated_by": "author", "updated_at_us": 1,
    },
    candidates: {
        "candidate_id": "c", "kind": "candidate-page", "channel": "g", "page_id": "p", "base_version": 0, "title": "t",
        "body": "b", "tags": "[]", "origin": "agent-produced", "lifecycle": "candidate", "turn_id": "t", "thread_id": "th",
        "agent": "a", "task_name": "", "created_at_us": 1, "decided_at_us": None, "decided_by": "", "note": "",
    },
    memory: {
        "entry_id": "m", "tier": "channel", "owner": "g", "key": "k", "text": "x", "form": "text",
        "origin": "agent-produced", "written_by": "a", "turn_id": "t",
        "created_at_us": 1, "updated_at_us": 1,
    },
    deviations: {
        "deviation_id": "d", "kind": "contradiction", "channel": "g", "page_id": "p", "page_version": 1, "says": "s",
        "found": "f", "source": "", "candidate_id": "", "why": "", "origin": "observed", "lifecycle": "open",
        "turn_id": "t", "thread_id": "th", "agent": "a", "task_name": "", "created_at_us": 1, "decided_at_us": None,
        "decided_by": "", "note": "",
    },
    revalidations: {
        "page_id": "p", "cause": "c", "cause_version": 2, "via": "c", "state": "waiting", "result": "", "turn_id": "",
        "note": "", "queued_at_us": 1, "settled_at_us": None,
    },
    attachments: {
        "page_id": "p", "name": "n", "content_type": "text/plain", "size": 1, "sha256": "0", "data": b"x",
        "origin": "authored", "lifecycle": "canonical", "added_by": "author", "added_at_us": 1,
    },
    page_links: {"page_id": "p", "source": "q", "page_version": 1},
}  # fmt: skip


@pytest.mark.parametrize(("table", "change"), BAD_ROWS, ids=str)
async def test_the_database_itself_refuses_what_has_no_provenance(
    database: Database, table: Any, change: dict[str, Any]
) -> None:
    with pytest.raises(IntegrityError):
        await database.run(lambda connection: connection.execute(insert(table).values(GOOD_ROWS[table] | change)))
    await database.run(lambda connection: connection.execute(insert(table).values(GOOD_ROWS[table])))


async def test_no_update_makes_a_candidate_canonical_without_a_decision(
    workspace: Workspace, begin: Begin, database: Database
) -> None:
    await workspace.propose(call(begin()), SummaryDraft(channel="general", title="t", body="b"))
    with pytest.raises(IntegrityError):
        await database.run(lambda connection: connection.execute(update(candidates).values(lifecycle="canonical")))


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.builds(PageDraft, page_id=st.sampled_from(["garden", "x", "../x"]), title=TEXT, body=TEXT),
        st.builds(SummaryDraft, channel=st.sampled_from(["general", "secret"]), title=TEXT, body=TEXT),
        st.builds(Acceptance, candidate_id=st.just("c-seed")),
        st.builds(Rejection, candidate_id=st.just("c-seed")),
    ),
    st.sampled_from(["catch-up-summary", "conversation"]),
    st.booleans(),
)
def test_whatever_an_agent_submits_is_a_candidate_with_provenance_or_nothing(
    database: Database, begin: Begin, clock: ManualClock, draft: Any, named: str, read_only: bool
) -> None:
    turn_id = f"turn-{database.submit(_next_number).result()}"
    context = begin(turn_id, named=named, read_only=read_only)
    before = database.submit(_canonical).result()
    new_id = f"c-{turn_id}"
    done = database.submit(lambda connection: submit(connection, draft, context, at=clock.now(), new_id=new_id))
    if done.exception() is None:
        made = done.result()
        assert (made.origin, made.lifecycle, made.turn_id) == ("agent-produced", "candidate", turn_id)
    assert database.submit(_canonical).result() == before


def _canonical(connection: Any) -> list[Any]:
    decided = select(candidates.c.candidate_id).where(candidates.c.lifecycle != "candidate")
    return [*connection.execute(select(pages)).all(), *connection.execute(decided).all()]


def _next_number(connection: Any) -> int:
    from agent_runtime.store.schema import turns

    return int(connection.execute(select(func.count()).select_from(turns)).scalar())


async def count(database: Database, table: Any) -> int:
    return await database.run(
        lambda connection: connection.execute(select(func.count()).select_from(table)).scalar_one()
    )


def test_an_author_is_only_who_the_runtime_says() -> None:
    assert stamp(Author(), PAGE).lifecycle == "canonical"
