"""What a run of a public project showed, in short, and the table of all of them in docs/reference/public-projects.md. Pure."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
EARLIER = HERE / "earlier.json"  # the questions of the same runs before init granted a graph its own memory
PAGE = HERE.parents[1] / "docs" / "reference" / "public-projects.md"
_TRACING = ("LANGSMITH_", "LANGCHAIN_")
BEGIN, END = "<!-- the table of public projects begins -->", "<!-- the table of public projects ends -->"
_HEAD = "| graph | version | fires | questions | its thread | asked for | own | kill -9 | `graph check` said |"


def summary(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the table says of a run, and what `graph check` had not said."""
    check, asked, killed = seen["check"], seen.get("asked", {}), seen.get("killed", {})
    questions = [*asked.get("questions", ()), *killed.get("questions", ())]
    tools = sorted({one["about"] for one in questions if one["kind"] == "permission"})
    own = [one for one in asked.get("questions", ()) if one["kind"] == "question"]
    return {
        "loads": bool(seen["loads"]),
        "fires": asked.get("outcomes", []),
        "thread": _thread(seen.get("state") or {}, seen.get("requests_read", 0)),
        "questions": len(asked.get("questions", ())),
        "asks": tools,
        "own": len(own),
        "kill": _killed(killed),
        "said": said(check),
        "surprises": surprises(seen),
    }


def said(check: Mapping[str, Any]) -> list[str]:
    """Return what `graph check` told that later asks, fails or is ignored."""
    if check.get("problem"):
        return [f"refused: {check['problem']}"]
    lists = {
        "asks for": [tool["name"] for tool in (*check["tools"], *check["made_tools"])],
        "makes tools in": check["makes_tools"],
        "asks by itself in": check["asks"],
        "stops": [str(one) for one in check["stops"]],
        "catches questions in": check["catches"],
        "has two tools each called": check.get("shared_names", ()),
        "calls LangGraph Server in": check["calls_server"],
        "needs": [name for name in check["input_schema"]["required"] if name != check["prompt_goes_to"]],
        "takes no prompt, but": () if check["prompt_goes_to"] else check["input_schema"]["properties"],
        "takes context": (check["context_schema"] or {}).get("properties", ()),
        "ignores": [*check["ignored"], *check["store"]["ignored"]],
        "not set": [name for name in check["unset"] if not name.startswith(_TRACING)],
    }
    found = [f"{what} {', '.join(names)}" for what, names in lists.items() if names]
    return found + [f"not guarded: {one['where']}: {one['why']}" for one in check["unguardable"]]


def surprises(seen: Mapping[str, Any]) -> list[str]:
    """Return what happened although `graph check` had not said so."""
    check = seen["check"]
    if check.get("problem"):
        return []
    found = [f"trouble: {seen['trouble']}"] if seen.get("trouble") else []
    for what in ("asked", "killed"):
        part = seen.get(what, {})
        found += [one for one in part.get("outcomes", ()) if one != "succeeded" and not _was_said(one, check)]
        found += [line for one in part.get("questions", ()) for line in _unsaid(one, check, granted=what == "killed")]
    return sorted(set(found))


def _was_said(outcome: str, check: Mapping[str, Any]) -> bool:
    return bool(check["calls_server"] or (check["catches"] and "caught the question" in outcome))


def _unsaid(question: Mapping[str, Any], check: Mapping[str, Any], *, granted: bool) -> Iterable[str]:
    """Yield what is wrong with a question: nobody said that it comes, or its answer did not fit."""
    about = question["about"]
    listed = {tool["name"] for tool in (*check["tools"], *check["made_tools"])}
    if question["said"]:
        yield f"{about} does not take {' '.join(question['options'])}: {question['said']}"
    if question["kind"] == "question" and not (check["asks"] or check["stops"]):
        yield f"it asked {about}, and check named no node that asks"
    if question["kind"] != "question" and about not in listed:
        yield f"{about} asked, and was not listed"
    if question["kind"] != "question" and about in listed and granted and about not in check.get("shared_names", ()):
        yield f"{about} asked, although it was granted"


def _thread(state: Mapping[str, Any], read: int) -> str:
    if not state:
        return ""
    kept = f"{state['messages']} messages" if state["messages"] else f"{state['step'] + 2} steps"
    return f"{kept}, both requests read by the model" if read > 1 else kept


def _killed(killed: Mapping[str, Any]) -> str:
    if not killed:
        return ""
    if killed["outcomes"] != ["succeeded"]:
        return "; ".join(killed["outcomes"])
    return f"in {killed['stub']}: went on"


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of docs/reference/public-projects.md."""
    lines, earlier = [_HEAD, "| --- " * 9 + "|"], json.loads(EARLIER.read_text())
    for one in sorted(results, key=lambda row: str(row["name"])):
        seen = one["seen"]
        cells = (
            one["title"],
            one["version"],
            _fires(seen["fires"]),
            _questions(seen.get("questions"), earlier.get(one["name"])),
            seen["thread"] or "-",
            ", ".join(seen["asks"]) or "-",
            str(seen["own"] or "-"),
            seen["kill"] or "-",
            "; ".join([*seen["said"], *(f"**not said: {line}**" for line in seen["surprises"])]) or "nothing asks",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def _questions(count: int | None, before: int | None) -> str:
    """Return how many questions both fires asked, and how many they asked before if that is another number."""
    if count is None:
        return "-"
    return str(count) if before in {None, count} else f"{count} (before: {before})"


def _fires(outcomes: list[str]) -> str:
    good = sum(one == "succeeded" for one in outcomes)
    return f"{good} of {len(outcomes)}" if outcomes else "-"


def read_results() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text())
    return found


def page_with(text: str, results: Iterable[Mapping[str, Any]], not_run: Iterable[Mapping[str, str]]) -> str:
    """Return the page with the table of these results in its place, and below it what was not run and why."""
    assert BEGIN in text, "the page has a place for the table"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    others = "\n".join(f"- {one['name']}: {one['why']}." for one in not_run)
    return f"{before}{BEGIN}\n\n{table(results)}\n\nTried and not run:\n\n{others}\n\n{END}{after}"


def promise(results: Iterable[Mapping[str, Any]]) -> str:
    """Return what README says of the runs."""
    seen = [one["seen"] for one in results]
    good = [one for one in seen if one["fires"] and all(fire == "succeeded" for fire in one["fires"])]
    killed = sum(one["kill"].endswith("went on") for one in good)
    return f"{len(good)} graphs of public projects ran this way, {killed} also through a kill -9"
