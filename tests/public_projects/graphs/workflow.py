"""A workflow of LangGraph's functional API: tasks, a question to a person, and what an earlier run left."""

from langgraph.func import entrypoint, task
from langgraph.types import interrupt
from tools import search, send_mail


@task
def look_up(query: str) -> str:
    return search(query)


@task
def tell(text: str) -> str:
    return send_mail("author@example.org", text)


@entrypoint()
def graph(inputs: dict, *, previous: dict | None = None) -> entrypoint.final[dict, dict]:
    runs = (previous or {}).get("runs", 0) + 1
    found = look_up(inputs.get("prompt", "weather")).result()
    answer = interrupt({"question": f"Run {runs}: tell it?", "found": found})
    told = tell(found).result() if answer else "not told"
    return entrypoint.final(value={"runs": runs, "told": told}, save={"runs": runs})
