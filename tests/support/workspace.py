"""Queries that tests make of a workspace beside those of turns and authors."""

from typing import Any

from agent_runtime.workspace import pages
from agent_runtime.workspace.model import Author, Candidate, Page, PageDraft
from agent_runtime.workspace.workspace import Workspace


async def put_page(workspace: Workspace, draft: PageDraft, *, author: Author | None = None) -> Page:
    return (await workspace.authors.put(draft, author=author)).page


async def get_page(workspace: Workspace, page_id: str) -> Page:
    return await workspace.read(lambda connection: pages.get_page(connection, page_id))


async def list_pages(workspace: Workspace, **which: Any) -> list[Page]:
    return await workspace.read(lambda connection: pages.list_pages(connection, **which))


async def list_candidates(workspace: Workspace, **which: Any) -> list[Candidate]:
    return await workspace.read(lambda connection: pages.list_candidates(connection, **which))
