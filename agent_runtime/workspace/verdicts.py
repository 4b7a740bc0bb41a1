"""What a turn finds about pages: a deviation, or a verdict on an item of the re-validation queue.

A part of the submit boundary (`agent_runtime/workspace/submit.py`), which alone calls it.
"""

from datetime import datetime

from sqlalchemy import Connection, select

from agent_runtime.model.turn import TurnContext
from agent_runtime.store.workspace_schema import candidates
from agent_runtime.workspace import deviations, revalidation
from agent_runtime.workspace.deviations import Deviation, DeviationDraft, Difference, Place, Writer, quotes
from agent_runtime.workspace.model import check_sources, check_text
from agent_runtime.workspace.pages import get_page
from agent_runtime.workspace.revalidation import Item, Settlement
from turnkeeper.errors import Conflict, Denied, InvalidInput


def record_deviation(connection: Connection, draft: DeviationDraft, turn: TurnContext, at: datetime) -> Deviation:
    """Keep what a turn found to contradict a canonical page, and settle the item of the queue that it answers.

    Raises:
        InvalidInput: the page is none that can be contradicted, or does not say what it is said to say.
        NotFound: no such page or item.
        Conflict: the item waits no more.
    """
    page = get_page(connection, draft.page_id)
    if page.lifecycle != "canonical":
        raise InvalidInput(f"page {page.page_id} is a {page.lifecycle}, which nothing contradicts", where="page")
    says, found = (
        check_text(text, field, deviations.LONGEST_STATEMENT).strip()
        for field, text in (("says", draft.says), ("found", draft.found))
    )
    if not says or not quotes(page.body, says):
        raise InvalidInput(f"is not a statement of page {page.page_id}", where="says", hint="quote it word for word")
    if not found or found == says:
        raise InvalidInput("wants the statement that contradicts the page", where="found")
    check_sources([draft.source] if draft.source else [])
    why = check_text(draft.why, "why", deviations.LONGEST_NOTE)
    place = Place(page_id=page.page_id, page_version=page.version, source=draft.source, why=why)
    writer = Writer.of(turn, "agent-produced")
    deviation_id, _ = deviations.record(connection, place, Difference(says=says, found=found), writer, at)
    if draft.item_id:
        settle(connection, Settlement(item_id=draft.item_id, result="deviation", note=why), turn, at)
    return deviations.get_deviation(connection, deviation_id)


def settle(connection: Connection, draft: Settlement, turn: TurnContext, at: datetime) -> Item:
    """Take an item out of the queue, if what the turn says of it can be seen.

    Raises:
        InvalidInput: no such result.
        NotFound: no such item.
        Conflict: it waits no more, or what the turn says to have written is not there.
        Denied: the page is said to hold although a deviation of it from this source is open.
    """
    item = revalidation.get_item(connection, draft.item_id)
    if item.state != "waiting":
        raise Conflict(f"item {item.item_id} is {item.state} already", hint="read the queue again")
    if draft.result not in revalidation.RESULTS:
        raise InvalidInput(f"{draft.result[:40]!r} is no result", where="result", hint=", ".join(revalidation.RESULTS))
    standing = deviations.open_on(connection, item.page_id)
    if draft.result == "holds" and any(one.source in {item.cause, item.via} for one in standing):
        raise Denied(f"a deviation of page {item.page_id} is open, and only the author closes it", where="result")
    if draft.result == "deviation" and not standing:
        raise Conflict(f"no deviation of page {item.page_id} is recorded", hint="record it first")
    if draft.result == "candidate" and not _proposed(connection, item.page_id):
        raise Conflict(f"no change of page {item.page_id} is proposed", hint="propose it first")
    check_text(draft.note, "note", deviations.LONGEST_NOTE)
    revalidation.settle_item(connection, item, draft, turn.turn_id, at)
    return revalidation.get_item(connection, item.item_id)


def _proposed(connection: Connection, page_id: str) -> bool:
    waits = (candidates.c.page_id == page_id) & (candidates.c.lifecycle == "candidate")
    return connection.execute(select(candidates.c.candidate_id).where(waits).limit(1)).one_or_none() is not None
