"""The workspace's values as the wire carries them. Pure."""

from agent_runtime.model.conversation import stamp
from agent_runtime.model.turn import Category
from agent_runtime.permissions.categories import CategoryEntry
from agent_runtime.workspace.attachments import Attachment
from agent_runtime.workspace.deviations import Deviation
from agent_runtime.workspace.model import Candidate, MemoryEntry, Page
from agent_runtime.workspace.revalidation import Item
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire


def page_message(page: Page, *, with_body: bool = True) -> wire.Page:
    """Return a page; lists leave its body out."""
    return wire.Page(
        page_id=page.page_id,
        title=page.title,
        body=page.body if with_body else "",
        tags=page.tags,
        origin=page.origin,
        lifecycle=page.lifecycle,
        updated_at=stamp(page.updated_at),
        version=page.version,
    )


def candidate_message(candidate: Candidate) -> wire.Candidate:
    """Return a candidate."""
    return wire.Candidate(
        candidate_id=candidate.candidate_id,
        kind=candidate.kind,
        channel=candidate.channel,
        title=candidate.title,
        body=candidate.body,
        origin=candidate.origin,
        lifecycle=candidate.lifecycle,
        turn_id=candidate.turn_id,
        task_name=candidate.task_name,
        created_at=stamp(candidate.created_at),
        decided_at=stamp(candidate.decided_at),
        note=candidate.note,
        sources=candidate.sources,
        page_id=candidate.page_id,
        base_version=candidate.base_version,
    )


def memory_message(entry: MemoryEntry) -> wire.MemoryEntry:
    """Return a memory entry."""
    return wire.MemoryEntry(
        entry_id=entry.entry_id,
        tier=entry.tier,
        owner=entry.owner,
        key=entry.key,
        text=entry.text,
        form=entry.form,
        origin=entry.origin,
        written_by=entry.written_by,
        turn_id=entry.turn_id,
        created_at=stamp(entry.created_at),
        updated_at=stamp(entry.updated_at),
    )


def attachment_message(found: Attachment, data: bytes = b"") -> wire.Attachment:
    """Return a file beside a page; lists leave its bytes out."""
    return wire.Attachment(
        page_id=found.page_id,
        name=found.name,
        content_type=found.content_type,
        size=found.size,
        sha256=found.sha256,
        origin=found.origin,
        lifecycle=found.lifecycle,
        added_at=stamp(found.added_at),
        data=data,
    )


def deviation_message(found: Deviation) -> wire.Deviation:
    """Return a deviation."""
    return wire.Deviation(
        deviation_id=found.deviation_id,
        kind=found.kind,
        channel=found.channel,
        page_id=found.page_id,
        page_version=found.page_version,
        says=found.says,
        found=found.found,
        source=found.source,
        candidate_id=found.candidate_id,
        why=found.why,
        origin=found.origin,
        lifecycle=found.lifecycle,
        turn_id=found.turn_id,
        task_name=found.task_name,
        created_at=stamp(found.created_at),
        decided_at=stamp(found.decided_at),
        note=found.note,
    )


def item_message(item: Item) -> wire.RevalidationItem:
    """Return an item of the re-validation queue."""
    return wire.RevalidationItem(
        item_id=item.item_id,
        page_id=item.page_id,
        cause=item.cause,
        cause_version=item.cause_version,
        via=item.via,
        state=item.state,
        result=item.result,
        turn_id=item.turn_id,
        note=item.note,
        queued_at=stamp(item.queued_at),
        settled_at=stamp(item.settled_at),
    )


def category_message(entry: CategoryEntry) -> wire.Category:
    """Return a category as it was found, usable or not."""
    category = entry.category or Category(name=entry.name)
    return wire.Category(
        name=entry.name,
        description=category.description,
        autonomous=category.autonomous,
        silent=category.silent,
        outside=category.outside,
        tools=sorted(category.tools),
        writes=sorted(category.writes),
        memory=sorted(category.memory),
        source=entry.source,
        overrides_shipped=entry.overrides_shipped,
        problem=entry.problem,
    )
