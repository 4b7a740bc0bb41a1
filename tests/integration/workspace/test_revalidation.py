"""Pages derived from what changed are held against it again: contradictions are recorded, and only an author closes one."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from sqlalchemy import insert, select

from agent_runtime.graph.agent.default import build_graph
from agent_runtime.store.schema import page_links
from agent_runtime.tools.workspace import workspace_tools
from agent_runtime.workspace import deviations, revalidation
from agent_runtime.workspace.deviations import Deviation, DeviationDraft, Resolution
from agent_runtime.workspace.model import PageDraft
from agent_runtime.workspace.revalidation import Item, Settlement
from agent_runtime.workspace.workspace import Workspace, standing
from tests.integration.workspace.conftest import Agent, AskingGuard, Begin, Told, call
from tests.support.clock import ManualClock
from tests.support.workspace import get_page, list_candidates, put_page
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.errors import Conflict, Denied, InvalidInput, NotFound
from turnkeeper.storage.database import Database

GARDEN = "Forty-two plots are let, three are free.\n\nThe garden opens every Saturday from April to October."
LEAFLET = "Come and see us!\n\n- Forty-two plots are let,\n  three are free.\n- Cake is served.\n"
POSTER = "Three free plots. Ask at the gate."
CHANGED = GARDEN.replace("three are free", "five are free")


def page(name: str, body: str, *sources: str) -> PageDraft:
    return PageDraft(page_id=name, title=name.title(), body=body, sources=sources)


@pytest.fixture
async def corpus(workspace: Workspace) -> None:
    """A page, one derived from it, and one derived from that."""
    for draft in (page("garden", GARDEN), page("leaflet", LEAFLET, "garden"), page("poster", POSTER, "leaflet")):
        await put_page(workspace, draft)


Queue = Callable[..., Any]


@pytest.fixture
def queue(database: Database) -> Queue:
    async def read(*, everything: bool = False) -> list[Item]:
        return await database.run(
            lambda connection: revalidation.list_items(connection, include_settled=everything, limit=100)
        )

    return read


@pytest.fixture
def recorded(database: Database) -> Callable[..., Any]:
    async def read() -> list[Deviation]:
        return await database.run(lambda connection: deviations.list_deviations(connection, include_decided=True))

    return read


async def test_a_change_doubts_all_that_was_derived_from_it_and_nothing_else(
    workspace: Workspace, corpus: None, queue: Queue
) -> None:
    assert await queue() == []
    put = await workspace.authors.put(page("garden", CHANGED))
    assert put.queued == 2
    found = [(item.page_id, item.cause, item.cause_version, item.via) for item in await queue()]
    assert found == [("leaflet", "garden", 2, "garden"), ("poster", "garden", 2, "leaflet")]
    await workspace.authors.put(page("elsewhere", "Unlinked."))
    await workspace.authors.put(PageDraft(page_id="garden", title="Garden", body=CHANGED, tags=("new",)))
    assert len(await queue()) == 2, "other tags change nothing that a page could be derived from"


async def test_a_change_doubts_every_one_of_very_many_pages_and_a_reader_is_told_of_some(
    workspace: Workspace, corpus: None, database: Database
) -> None:
    rows = [{"page_id": f"p-{number}", "source": "garden", "page_version": 1} for number in range(3_000)]
    rows += [{"page_id": f"q-{number}", "source": f"p-{number}", "page_version": 1} for number in range(3_000)]
    await database.run(lambda connection: connection.execute(insert(page_links), rows))
    put = await workspace.authors.put(page("garden", CHANGED))
    assert put.queued == 6_002
    found = await workspace.read(lambda connection: standing(connection, "garden"))
    assert len(found.derived) == revalidation.MOST_DEPENDENTS


async def test_pages_derived_from_each_other_end(workspace: Workspace, corpus: None, queue: Queue) -> None:
    await put_page(workspace, page("garden", GARDEN, "poster"))
    assert await queue() == []
    await put_page(workspace, page("leaflet", "New."))
    assert sorted(item.page_id for item in await queue()) == ["garden", "poster"]


async def test_a_newer_change_replaces_what_waits_so_that_no_older_verdict_settles_it(
    workspace: Workspace, corpus: None, queue: Queue, begin: Begin
) -> None:
    await put_page(workspace, page("garden", CHANGED))
    (leaflet, _) = await queue()
    await put_page(workspace, page("garden", GARDEN))
    context = begin(named="re-validation-walk")
    with pytest.raises(Conflict, match="already replaced"):
        await workspace.settle_item(call(context), Settlement(item_id=leaflet.item_id, result="holds"))
    assert [(item.page_id, item.cause_version) for item in await queue()] == [("leaflet", 3), ("poster", 3)]


async def test_the_walk_records_what_differs_proposes_the_change_and_keeps_what_holds(
    agent: Agent, workspace: Workspace, corpus: None, begin: Begin, queue: Queue, recorded: Any
) -> None:
    await put_page(workspace, page("garden", CHANGED))
    await agent.run(begin(prompt="Walk the queue.", named="re-validation-walk", task_name="walk"))
    assert await queue() == []
    results = {item.page_id: (item.result, item.turn_id) for item in await queue(everything=True)}
    assert results == {"leaflet": ("deviation", "turn-1"), "poster": ("holds", "turn-1")}
    (one,) = await recorded()
    assert (one.page_id, one.source, one.origin, one.lifecycle) == ("leaflet", "garden", "agent-produced", "open")
    assert (one.says, one.found) == (
        "Forty-two plots are let, three are free.",
        "Forty-two plots are let, five are free.",
    )
    (candidate,) = await list_candidates(workspace)
    assert candidate.body == LEAFLET.replace("let,\n  three", "let, five")
    assert one.candidate_id == candidate.candidate_id, "the record that the boundary would have made is this one"
    for part in (
        "Compared 2 pages of 2",
        one.deviation_id,
        candidate.candidate_id,
        "Still valid: poster",
        "rule-based",
    ):
        assert part in agent.text
    assert (await get_page(workspace, "leaflet")).body == LEAFLET, "nothing is canonical but by the author's act"


async def test_accepting_a_deviation_accepts_its_candidate_and_doubts_what_follows(
    agent: Agent, workspace: Workspace, corpus: None, begin: Begin, queue: Queue, recorded: Any
) -> None:
    await put_page(workspace, page("garden", CHANGED))
    await agent.run(begin(named="re-validation-walk"))
    (one,) = await recorded()
    closed = await workspace.authors.resolve(Resolution(deviation_id=one.deviation_id, accept=True, note="yes"))
    assert (closed.lifecycle, closed.note) == ("accepted", "yes")
    leaflet = await get_page(workspace, "leaflet")
    assert ("five are free" in leaflet.body, leaflet.origin, leaflet.lifecycle) == (True, "agent-produced", "canonical")
    assert [(item.page_id, item.cause) for item in await queue()] == [("poster", "leaflet")]
    with pytest.raises(Conflict, match="already accepted"):
        await workspace.authors.resolve(Resolution(deviation_id=one.deviation_id, accept=False))


async def test_rejecting_the_candidate_closes_the_deviation_for_the_page_as_it_is(
    agent: Agent, workspace: Workspace, corpus: None, begin: Begin, recorded: Any
) -> None:
    await put_page(workspace, page("garden", CHANGED))
    await agent.run(begin(named="re-validation-walk"))
    (candidate,) = await list_candidates(workspace)
    await workspace.authors.decide(candidate.candidate_id, accept=False)
    assert [one.lifecycle for one in await recorded()] == ["kept"]


async def test_a_fire_walks_a_bounded_number_and_the_next_goes_on(
    agent: Agent, workspace: Workspace, begin: Begin, end: Callable[..., None], queue: Queue
) -> None:
    await put_page(workspace, page("garden", GARDEN))
    for number in range(7):
        await put_page(workspace, page(f"copy-{number}", f"Copy {number} of it.", "garden"))
    await put_page(workspace, page("garden", CHANGED))
    left = []
    for number in range(4):
        await agent.run(begin(f"turn-{number}", named="re-validation-walk"))
        end(f"turn-{number}")
        left.append(len(await queue()))
    assert left == [4, 1, 0, 0]
    assert agent.text == "", "with nothing in the queue there is nothing to say"


async def test_the_same_verdict_again_changes_nothing(
    workspace: Workspace, corpus: None, begin: Begin, queue: Queue, recorded: Any
) -> None:
    await put_page(workspace, page("garden", CHANGED))
    (item, _) = await queue()
    context = begin(named="re-validation-walk")
    draft = DeviationDraft(
        page_id="leaflet",
        says="Forty-two plots are let, three are free.",
        found="five are free",
        source="garden",
        item_id=item.item_id,
    )
    first, again = [await workspace.record_deviation(call(context), draft) for _ in range(2)]
    assert (first.result, first.repeated, again.repeated) == (again.result, False, True)
    with pytest.raises(Conflict, match="already settled"):
        await workspace.record_deviation(call(context, 2), draft)
    assert len(await recorded()) == 1
    assert len(await queue()) == 1


async def test_an_open_deviation_is_told_once_and_a_closed_one_anew(
    workspace: Workspace, corpus: None, begin: Begin, recorded: Any
) -> None:
    draft = DeviationDraft(page_id="garden", says="three are free", found="none is free")
    context = begin(named="re-validation-walk")
    made = [
        (await workspace.record_deviation(call(context, number), draft)).result["deviation_id"] for number in (1, 2)
    ]
    assert made[0] == made[1]
    await workspace.authors.resolve(Resolution(deviation_id=made[0], accept=False))
    await workspace.record_deviation(call(context, 3), draft)
    assert sorted(one.lifecycle for one in await recorded()) == ["kept", "open"]


@pytest.mark.parametrize(
    ("result", "refused"),
    [("deviation", "no deviation"), ("candidate", "no change"), ("canonical", "is not a result")],
)
async def test_a_verdict_without_what_it_speaks_of_is_refused(
    workspace: Workspace, corpus: None, begin: Begin, queue: Queue, result: str, refused: str
) -> None:
    await put_page(workspace, page("garden", CHANGED))
    (item, _) = await queue()
    with pytest.raises((Conflict, InvalidInput), match=refused):
        await workspace.settle_item(
            call(begin(named="re-validation-walk")), Settlement(item_id=item.item_id, result=result)
        )
    assert len(await queue()) == 2


async def test_no_agent_calls_a_page_valid_while_a_deviation_of_it_is_open(
    workspace: Workspace, corpus: None, begin: Begin, queue: Queue
) -> None:
    await put_page(workspace, page("garden", CHANGED))
    (item, _) = await queue()
    context = begin(named="re-validation-walk")
    found = DeviationDraft(page_id="leaflet", says="Cake is served.", found="No cake.", source="garden")
    await workspace.record_deviation(call(context, 1), found)
    with pytest.raises(Denied, match="only the author can close it"):
        await workspace.settle_item(call(context, 2), Settlement(item_id=item.item_id, result="holds"))


async def test_a_page_that_holds_is_linked_to_the_version_it_was_held_against(
    workspace: Workspace, corpus: None, begin: Begin, queue: Queue, database: Database
) -> None:
    await put_page(workspace, page("garden", GARDEN + "\n\nMore."))
    (item, _) = await queue()
    await workspace.settle_item(
        call(begin(named="re-validation-walk")), Settlement(item_id=item.item_id, result="holds", note="same facts")
    )
    mine = select(page_links.c.page_version).where(page_links.c.page_id == "leaflet")
    assert await database.run(lambda connection: connection.execute(mine).scalar()) == 2


@pytest.mark.parametrize(
    ("draft", "error", "where"),
    [
        (DeviationDraft(page_id="garden", says="nothing of the kind", found="x"), InvalidInput, "says"),
        (DeviationDraft(page_id="garden", says="", found="x"), InvalidInput, "says"),
        (DeviationDraft(page_id="garden", says="three are free", found=" "), InvalidInput, "found"),
        (DeviationDraft(page_id="garden", says="three are free", found="three are free"), InvalidInput, "found"),
        (DeviationDraft(page_id="garden", says="three are free", found="x\x00"), InvalidInput, "found"),
        (DeviationDraft(page_id="garden", says="three are free", found="x", source="../x"), InvalidInput, "sources"),
        (DeviationDraft(page_id="garden", says="three are free", found="x" * 1001), InvalidInput, "found"),
        (DeviationDraft(page_id="garden", says="three are free", found="x", item_id="r-99"), NotFound, ""),
        (DeviationDraft(page_id="garden", says="three are free", found="x", item_id="r-٣"), InvalidInput, "item"),
        (DeviationDraft(page_id="nosuch", says="a", found="x"), NotFound, ""),
    ],
)
async def test_what_is_no_deviation_is_refused_and_nothing_is_kept(
    workspace: Workspace, corpus: None, begin: Begin, recorded: Any, draft: DeviationDraft, error: Any, where: str
) -> None:
    with pytest.raises(error) as refused:
        await workspace.record_deviation(call(begin(named="re-validation-walk")), draft)
    assert refused.value.where == where
    assert await recorded() == []


async def test_an_agent_closes_nothing(workspace: Workspace, corpus: None, begin: Begin, database: Database) -> None:
    from agent_runtime.workspace.submit import submit

    context = begin(named="conversation")
    draft = DeviationDraft(page_id="garden", says="three are free", found="none is free")
    made = await workspace.record_deviation(call(context), draft)
    resolution = Resolution(deviation_id=made.result["deviation_id"], accept=False)
    at = (await get_page(workspace, "garden")).updated_at
    with pytest.raises(Denied, match="only an author"):
        await database.run(lambda connection: submit(connection, resolution, context, at=at, new_id=""))


async def test_a_candidate_that_contradicts_its_page_or_its_source_leaves_a_record(
    workspace: Workspace, corpus: None, begin: Begin, recorded: Any, told: Told
) -> None:
    context = begin(named="conversation", started_by="author")
    wrong = page("garden", GARDEN.replace("Saturday", "Sunday"))
    made = await workspace.propose(call(context, 1), wrong)
    (one,) = await recorded()
    assert made.result["deviations"] == [one.deviation_id]
    assert (one.origin, one.candidate_id, one.turn_id) == ("observed", made.result["candidate_id"], "turn-1")
    assert one.says == "The garden opens every Saturday from April to October."
    other = page("visit", "Key facts:\n\nThe garden opens every Friday from April to October.", "garden")
    await workspace.propose(call(context, 2), other)
    assert {(found.page_id, found.found) for found in await recorded()} == {
        ("garden", "The garden opens every Sunday from April to October."),
        ("garden", "The garden opens every Friday from April to October."),
    }
    harmless = await workspace.propose(call(context, 3), page("garden", GARDEN + "\n\nSlugs are not welcome."))
    assert harmless.result["deviations"] == []
    assert "Sunday" not in str(told), "events tell no text"


async def test_two_candidates_that_contradict_a_page_in_the_same_words_are_recorded_and_decided_each(
    workspace: Workspace, corpus: None, begin: Begin, recorded: Any
) -> None:
    wrong, made = GARDEN.replace("Saturday", "Sunday"), list[Any]()
    for number, more in enumerate(("", "\n\nBring gloves.")):
        context = begin(f"turn-{number}", named="conversation", started_by="author")
        made.append((await workspace.propose(call(context), page("garden", wrong + more))).result)
    by_candidate = {one.candidate_id: one for one in await recorded()}
    assert [[by_candidate[one["candidate_id"]].deviation_id] for one in made] == [one["deviations"] for one in made]
    same = by_candidate[made[0]["candidate_id"]]
    found = DeviationDraft(page_id="garden", says=same.says, found=same.found)
    again = await workspace.record_deviation(call(begin("turn-2", named="conversation")), found)
    assert again.result["deviation_id"] in [one.deviation_id for one in by_candidate.values()], (
        "what an agent finds is told already"
    )
    await workspace.authors.decide(made[0]["candidate_id"], accept=False)
    assert {one.candidate_id: one.lifecycle for one in await recorded()} == {
        made[0]["candidate_id"]: "kept",
        made[1]["candidate_id"]: "open",
    }


async def test_a_page_that_changes_under_a_candidate_leaves_one_record(
    workspace: Workspace, corpus: None, begin: Begin, recorded: Any
) -> None:
    context = begin(named="conversation", started_by="author")
    made = await workspace.propose(call(context), page("garden", GARDEN + "\n\nBring gloves."))
    for body in ("One.", "Two."):
        await put_page(workspace, page("garden", body))
    (one,) = await recorded()
    assert (one.kind, one.candidate_id, one.page_version) == ("stale-base", made.result["candidate_id"], 2)
    with pytest.raises(Conflict, match="version 3"):
        await workspace.authors.resolve(Resolution(deviation_id=one.deviation_id, accept=True))
    assert [found.lifecycle for found in await recorded()] == ["open"], "a decision that fails decides nothing"
    await workspace.authors.decide(made.result["candidate_id"], accept=False)
    assert [found.lifecycle for found in await recorded()] == ["kept"]


async def test_a_source_that_changes_under_a_candidate_is_told_and_its_page_waits_once_accepted(
    workspace: Workspace, corpus: None, begin: Begin, recorded: Any, queue: Queue
) -> None:
    made = await workspace.propose(
        call(begin(named="conversation", started_by="author")), page("visit", "Come to the garden.", "garden")
    )
    await put_page(workspace, page("garden", CHANGED))
    (one,) = await recorded()
    assert (one.kind, one.page_id, one.candidate_id) == ("stale-base", "garden", made.result["candidate_id"])
    assert "visit" not in [item.page_id for item in await queue()], "it is no page yet"
    await workspace.authors.decide(made.result["candidate_id"], accept=True)
    (item,) = [item for item in await queue() if item.page_id == "visit"]
    assert (item.cause, item.cause_version, item.via) == ("garden", 2, "garden")
    assert [found.lifecycle for found in await recorded()] == ["accepted"]


async def test_no_proposal_cuts_a_page_from_what_it_was_derived_from(
    workspace: Workspace, corpus: None, begin: Begin, database: Database
) -> None:
    draft = page("leaflet", LEAFLET, "https://example.org/rules")
    made = await workspace.propose(call(begin(named="conversation", started_by="author")), draft)
    await workspace.authors.decide(made.result["candidate_id"], accept=True)
    links = await database.run(lambda connection: revalidation.links_of(connection, "leaflet"))
    assert links == ("garden@1", "https://example.org/rules")
    await put_page(workspace, page("leaflet", LEAFLET, "poster"))
    links = await database.run(lambda connection: revalidation.links_of(connection, "leaflet"))
    assert links == ("poster@1",), "its author may"


@pytest.mark.parametrize("version", [0, 1], ids=["not-named", "named"])
async def test_what_was_made_from_a_version_that_is_gone_overwrites_nothing(
    workspace: Workspace, corpus: None, begin: Begin, recorded: Any, clock: ManualClock, version: int
) -> None:
    context = begin(named="conversation", started_by="author")
    clock.advance(60)
    await put_page(workspace, page("garden", GARDEN + "\n\nThe author's newer words."))
    draft = PageDraft(page_id="garden", title="Garden", body=GARDEN + "\n\nBring gloves.", version=version)
    made = await workspace.propose(call(context), draft)
    (one,) = await recorded()
    assert (one.kind, made.result["deviations"]) == ("stale-base", [one.deviation_id])
    with pytest.raises(Conflict, match="at version 2, the proposal was made at version 1"):
        await workspace.authors.decide(made.result["candidate_id"], accept=True)
    assert "newer words" in (await get_page(workspace, "garden")).body
    again = PageDraft(page_id="garden", title="Garden", body=GARDEN, version=2)
    assert (await workspace.propose(call(context, 2), again)).result["deviations"] == [], (
        "who has read it may change it"
    )
    with pytest.raises(InvalidInput, match="no version 3"):
        await workspace.propose(call(context, 3), PageDraft(page_id="garden", title="Garden", body="x", version=3))


async def test_scopes_are_checked_by_the_world_itself(workspace: Workspace, corpus: None, begin: Begin) -> None:
    context = begin(named="catch-up-summary")
    draft = DeviationDraft(page_id="garden", says="three are free", found="x")
    for number, refused in enumerate(
        (
            workspace.record_deviation(call(context, 1), draft),
            workspace.settle_item(call(context, 2), Settlement(item_id="r-1", result="holds")),
            workspace.next_items(call(context), 5),
            workspace.page_standing(call(context), "garden", 0),
            workspace.read_attachment(call(context), "garden", "a.txt"),
        )
    ):
        with pytest.raises(Denied, match="does not grant"):
            await refused
        assert number < 5


class Dying(InMemorySaver):
    """A checkpointer that dies before one of its writes, as a process may at any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.left = [0]  # a graph works on copies of its checkpointer

    def _live_on(self) -> None:
        self.left[0] -= 1
        if self.left[0] <= 0:
            raise OSError("killed")  # and what is dead writes nothing more

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        self._live_on()
        return await super().aput(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> Any:
        self._live_on()
        return await super().aput_writes(*args, **kwargs)


async def test_wherever_a_walk_dies_and_goes_on_it_records_each_thing_once(
    home: Home,
    workspace: Workspace,
    corpus: None,
    clock: ManualClock,
    begin: Begin,
    queue: Queue,
    recorded: Any,
    told: Told,
) -> None:
    specs, saver = workspace_tools(workspace), Dying()
    graph = build_graph(
        Settings(), home, specs, middleware=[AskingGuard(specs)], checkpointer=saver, clock=clock, environ={}
    )
    for at in (16, 20, 24, 25):  # of some thirty writes of checkpoints, those just after a write of ours; see the end
        old, new = ("three", "five") if at % 2 else ("five", "three")
        clock.advance(1)
        await put_page(workspace, page("leaflet", LEAFLET.replace("three", old)))
        await put_page(workspace, page("garden", GARDEN.replace("three", old)))
        await put_page(workspace, page("garden", GARDEN.replace("three", new)))
        saver.left[0] = at
        context = begin(f"turn-{at}", prompt="Walk.", named="re-validation-walk")
        config = {"configurable": {"thread_id": context.thread_id}}
        given: Any = {"messages": [HumanMessage(context.prompt, id=f"asked-{at}")]}
        for _ in range(2):
            try:
                await graph.ainvoke(given, config, context=context, durability="sync")
                break
            except OSError:
                saver.left[0] = 1_000
                kept = await saver.aget_tuple(config)
                given = None if kept and kept.checkpoint["channel_values"].get("messages") else given
        mine = [one for one in await recorded() if one.turn_id == context.turn_id]
        assert [(one.page_id, one.lifecycle) for one in mine] == [("leaflet", "open")], f"died before write {at}"
        (candidate,) = await list_candidates(workspace)
        assert candidate.turn_id == context.turn_id
        assert await queue() == []
        await workspace.authors.decide(candidate.candidate_id, accept=False)
    repeated = {fields["scope"] for event, fields in told if event == "agent.wrote" and fields["repeated"]}
    assert repeated == {"deviation.record", "page.propose", "revalidation.settle"}, (
        "choose them anew: print which are repeated at 1 to 30"
    )
