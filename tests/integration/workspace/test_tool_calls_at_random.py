"""Whatever tools agents call, with whatever arguments, under whatever category: the promises about their writes hold.

No write of an agent is canonical, outside what its turn was granted, or without origin, lifecycle, turn and writer.
"""

import asyncio
from collections.abc import Callable, Iterator
from os import environ
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.tools import ToolException
from pydantic import ValidationError
from sqlalchemy import Table, delete, insert, select, update

from agent_runtime.graph.context import ToolSpec
from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import REQUEST, SCOPES, TIERS, WRITES, approve_once, judge
from agent_runtime.store.schema import (
    attachments,
    candidates,
    derivations,
    deviations,
    effects,
    memory,
    page_links,
    page_versions,
    pages,
    revalidations,
    turns,
)
from agent_runtime.tools.workspace import workspace_tools
from agent_runtime.workspace.model import PageDraft
from agent_runtime.workspace.pages import AttachmentDraft
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import row_of
from tests.support.clock import ManualClock
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.storage.database import Database

AUTHORS = (pages, page_versions, attachments)
AGENTS = (candidates, deviations, memory)
OTHERS = (derivations, effects, page_links, revalidations)
SHOWN = "Plots: 42\n\nThe garden opens every Saturday."


def often(usual: list[Any], odd: list[Any]) -> Any:
    """Mostly what a call needs to come through, now and then what must be refused."""
    return st.sampled_from([*usual * (1 + 4 * len(odd) // len(usual)), *odd])


TEXT = st.one_of(
    often(["Plots: 42", "Plots: 40", "The garden opens every Sunday.", "Canonical"], ["", "a\x00b", "\ud800"]),
    st.text(st.characters(codec="utf-8"), max_size=12),
)
PAGES = often(["garden", "leaflet", "visit"], ["nosuch", "../x", ""])
CHANNELS = often(["", "general", "secret"], ["general\n"])
KNOWN: dict[str, Any] = {
    "page": PAGES,
    "tier": often(list(TIERS), ["mine"]),
    "channel": CHANNELS,
    "key": st.sampled_from(["", "k", "authors"]),
    "item": often(["", "r-1", "r-2"], ["r-99", "r-x"]),
    "says": often(["Plots: 42", "The garden opens every Saturday."], ["Plots: 40"]),
    "result": often(["holds", "deviation", "candidate"], ["canonical"]),
    "sources": st.lists(st.one_of(PAGES, st.just("https://example.org/a")), max_size=2),
    "source": st.one_of(PAGES, st.just("https://example.org/a")),
    "tags": st.lists(often(["a"], ["B c"]), max_size=2),
    "url": st.sampled_from(["", "http://127.0.0.1/", "http://10.0.0.1/x", "file:///etc/passwd"]),
    "name": st.sampled_from(["plots.csv", "photo", "../x"]),
    "since": st.sampled_from(["start", "last-summary"]),
    "order": st.sampled_from(["newest", "oldest"]),
    "limit": st.integers(-1, 99),
    "version": st.integers(-1, 3),
    "skip": st.integers(-1, 3),
}
CLAIMS = st.fixed_dictionaries(
    {},
    optional={
        "origin": st.just("authored"),
        "lifecycle": st.just("canonical"),
        "written_by": st.just("author"),
        "turn_id": st.just(""),
        "decided_by": st.just("author"),
        "caller": st.just("author"),
    },
)
TOOLS = [spec for spec in workspace_tools(None) if spec.scope != REQUEST]  # type: ignore[arg-type]
WRITING = [spec for spec in TOOLS if spec.effect == "write"]
CALLS = st.sampled_from([*TOOLS, *WRITING * 3]).flatmap(
    lambda spec: st.tuples(
        st.just(spec.scope),
        st.fixed_dictionaries({name: KNOWN.get(name, TEXT) for name in spec.tool.tool_call_schema.model_fields}),  # type: ignore[union-attr]
        CLAIMS,
        st.booleans(),
    )
)
AMPLE: dict[str, Any] = {
    "tools": frozenset(SCOPES),
    "writes": WRITES,
    "memory": frozenset(TIERS),
    "channels": frozenset({"general", "secret"}),
    "network": frozenset({"*"}),
}
# Now and then everything is granted, so that writes come about; otherwise one or more things are not.
CATEGORIES = st.builds(
    lambda autonomous, grants: Category(name="any", autonomous=autonomous, **(AMPLE | grants)),
    st.booleans(),
    st.fixed_dictionaries(
        {},
        optional={
            "tools": st.frozensets(st.sampled_from(sorted(SCOPES))),
            "writes": st.frozensets(st.sampled_from(sorted(WRITES))),
            "memory": st.frozensets(st.sampled_from(TIERS)),
            "channels": st.just(frozenset()),
            "network": st.just(frozenset()),
        },
    ),
)
CONTEXTS = st.builds(
    TurnContext,
    turn_id=st.just("turn-1"),
    thread_id=st.just("thread-1"),
    channel=st.sampled_from(["general", "secret"]),
    agent=st.just("agent0"),
    category=CATEGORIES,
    read_only=st.sampled_from([False, False, False, True]),
    fire_id=st.sampled_from(["", "fire-1"]),
    task_name=st.sampled_from(["", "walk"]),
    started_by=st.sampled_from(["fire", "author"]),
)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


Rows = dict[str, set[tuple[Any, ...]]]


class Trial:
    """A workspace with an author's pages in it, begun anew for each example."""

    def __init__(self, database: Database, clock: ManualClock, runner: asyncio.Runner) -> None:
        self._database, self._clock, self._runner = database, clock, runner
        self.workspace = Workspace(database, clock, SeededEntropy(1), lambda _event, _fields: None)
        self.tools = {spec.scope: spec for spec in workspace_tools(self.workspace)}
        runner.run(self._write_pages())

    async def _write_pages(self) -> None:
        authors = self.workspace.authors
        await authors.put(PageDraft(page_id="garden", title="Garden", body="Plots: 42"))
        for name in ("leaflet", "visit"):
            await authors.put(PageDraft(page_id=name, title=name, body=SHOWN, sources=("garden",)))
        await authors.attach(AttachmentDraft(page_id="garden", name="plots.csv", content_type="text/csv", data=b"1"))
        await authors.put(PageDraft(page_id="garden", title="Garden", body=SHOWN))

    def begin(self, context: TurnContext) -> None:
        def anew(connection: Any) -> None:
            for table in (*AGENTS, derivations, effects, turns):
                connection.execute(delete(table))
            waiting = {"state": "waiting", "result": "", "turn_id": "", "note": "", "settled_at_us": None}
            connection.execute(update(revalidations).values(waiting))
            connection.execute(insert(turns).values(row_of(context, self._clock)))
            entry = {"entry_id": "m-a", "tier": "workspace", "owner": "", "key": "authors", "text": "mine"}
            by = {"form": "text", "origin": "authored", "written_by": "author", "turn_id": ""}
            connection.execute(insert(memory).values(entry | by | {"created_at_us": 1, "updated_at_us": 1}))

        self._database.submit(anew).result()

    def rows(self, *tables: Table) -> Rows:
        def read(connection: Any) -> Rows:
            return {table.name: {tuple(row) for row in connection.execute(select(table))} for table in tables}

        return self._database.submit(read).result()

    def call(self, spec: ToolSpec, args: dict[str, Any], context: TurnContext, number: int) -> None:
        """Call a tool as the guard's handler would; what it refuses, by its schema or by the workspace, is refused."""
        schema: Any = spec.tool.tool_call_schema
        runtime = SimpleNamespace(
            context=context, execution_info=SimpleNamespace(checkpoint_ns="ns"), tool_call_id=f"call-{number}"
        )
        try:
            given_ = dict(schema.model_validate(args))
            body: Callable[..., Any] = spec.tool.coroutine  # type: ignore[attr-defined]
            self._runner.run(body(**given_, runtime=runtime))
        except (ValidationError, ToolException):
            return


@pytest.fixture
def trial(database: Database, clock: ManualClock, runner: asyncio.Runner) -> Trial:
    return Trial(database, clock, runner)


# Raise WORLD_EXAMPLES to some thousands after a change of the submit boundary, the tools or the permissions.
@settings(max_examples=int(environ.get("WORLD_EXAMPLES", "40")), deadline=None, suppress_health_check=list(HealthCheck))
@given(CONTEXTS, st.lists(CALLS, min_size=2, max_size=6))
def test_no_write_of_an_agent_is_canonical_unscoped_or_without_provenance(
    trial: Trial, context: TurnContext, calls: list[tuple[str, dict[str, Any], dict[str, Any], bool]]
) -> None:
    trial.begin(context)
    standing = trial.rows(*AUTHORS)
    for number, (scope, args, claims, approved) in enumerate(calls):
        spec = trial.tools[scope]
        under = approve_once(spec.scope, spec.effect, args, context) if approved else context
        before = trial.rows(*AGENTS, *OTHERS)
        trial.call(spec, args | claims, under, number)
        after = trial.rows(*AGENTS, *OTHERS)
        wrote = before != after
        assert not wrote or judge(spec.scope, spec.effect, args, under).allowed, "the workspace itself refuses"
        assert not wrote or spec.effect == "write"
        assert wrote == (len(after["effects"]) > len(before["effects"])), "each write is known by its call"
        allowed = {"candidates", "deviations", "derivations"} if "propose" in scope else KINDS.get(scope, set())
        assert {name for name in before if before[name] != after[name]} <= allowed | {"effects"}, scope
    assert trial.rows(*AUTHORS) == standing, "canonical content is the author's"
    check_provenance(trial, context)


KINDS = {
    "deviation.record": {"deviations", "revalidations"},
    "revalidation.settle": {"revalidations", "page_links"},
    **{scope: {"memory"} for scope in ("memory.put", "memory.update", "memory.forget")},
}


def check_provenance(trial: Trial, context: TurnContext) -> None:
    def read(connection: Any) -> dict[str, list[Any]]:
        return {
            table.name: list(connection.execute(select(table)).all()) for table in (*AGENTS, revalidations, effects)
        }

    found = trial._database.submit(read).result()
    for row in found["candidates"]:
        assert (row.origin, row.lifecycle, row.decided_by) == ("agent-produced", "candidate", "")
        assert (row.turn_id, row.agent, row.thread_id) == (context.turn_id, context.agent, context.thread_id)
    for row in found["deviations"]:
        assert row.origin in {"agent-produced", "observed"}
        assert (row.lifecycle, row.turn_id, row.agent) == ("open", context.turn_id, context.agent)
    for row in found["memory"]:
        authored = row.key == "authors" and row.tier == "workspace"
        assert (row.origin, row.written_by, row.turn_id) == (
            ("authored", "author", "") if authored else ("agent-produced", context.agent, context.turn_id)
        )
    for row in found["revalidations"]:
        assert (row.state == "waiting") == (row.turn_id == "")
    assert all(row.turn_id == context.turn_id and row.scope for row in found["effects"])
