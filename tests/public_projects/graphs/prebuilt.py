"""LangGraph's own prebuilt agent, with a structured answer."""

from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel
from tools import search, send_mail


class Answer(BaseModel):
    """What was found."""

    summary: str
    sources: list[str]


graph = create_react_agent("anthropic:claude-sonnet-4-5-20250929", [search, send_mail], response_format=Answer)
