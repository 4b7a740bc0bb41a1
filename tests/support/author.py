"""A project of an author with its own routes and its own login, some of which misbehave as a test asks."""

import json
from pathlib import Path
from typing import Any

PROJECT = """
import asyncio, json, os, threading
from collections.abc import AsyncIterator
from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from starlette.routing import Route

auth = Auth()

@auth.authenticate
async def authenticate(authorization: str | None, headers: dict[bytes, bytes]):
    seen = {name.decode(): value.decode() for name, value in headers.items()}
    if authorization == "Bearer hang":
        await asyncio.Event().wait()
    if authorization == "Bearer broken":
        raise RuntimeError("a secret of the handler")
    if not (authorization or "").startswith("Bearer user-"):
        raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?")
    return {"identity": authorization.removeprefix("Bearer user-"), "permissions": ["talk"], "headers": seen}

def own(ctx, value):
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}

@auth.on.threads
async def threads(ctx, value):
    if ctx.user.identity == "odd":
        return {"owner": {"$like": "o%"}}
    return own(ctx, value)

@auth.on.threads.create_run
async def create_run(ctx, value):
    if ctx.user.identity == "strict":  # this user chooses no role, and no run creates a thread
        value["kwargs"].pop("config")
        value["if_not_exists"] = "reject"
    return own(ctx, value)

@auth.on.threads.delete
async def delete(ctx, value):
    return False

@auth.on.assistants
async def assistants(ctx, value):
    return own(ctx, value)

async def echo(request):
    headers = [[name.decode(), value.decode()] for name, value in request.scope["headers"]]
    about = {"path": request.scope["path"], "url": str(request.url), "client": request.client.host}
    return JSONResponse({"headers": headers, **about, "body": (await request.body()).decode()})

async def whoami(request):
    return JSONResponse({"identity": request.user.identity, "permissions": request.auth.scopes, **request.user["headers"]})

async def surroundings(request):
    opened = [os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd") if int(one) > 2 and
              os.path.lexists(f"/proc/self/fd/{one}")]
    read = lambda name: open(f"/proc/self/{name}").read()
    return JSONResponse({"environ": [dict(os.environ), read("environ")], "argv": read("cmdline"), "opened": opened})

async def shadow(request):
    return PlainTextResponse("shadowed")

async def redirect(request):
    return RedirectResponse(request.query_params["to"])

async def hang(request):
    await asyncio.Event().wait()

async def block(request):
    threading.Event().wait()

async def die(request):
    os._exit(1)

async def endless(request):
    async def parts():
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)
    return StreamingResponse(parts())

async def stream(request):
    async def parts():
        yield b"first"
        await asyncio.Event().wait()
    return StreamingResponse(parts())

async def page(request):
    answer = HTMLResponse("<script>fetch('/ui')</script>")
    answer.headers.append("set-cookie", "turnkeeper-7373=stolen")
    answer.headers.append("set-cookie", "mine=1")
    answer.headers.update({"access-control-allow-origin": "*", "clear-site-data": "*", "content-security-policy": "x"})
    return answer

HANDLERS = {"/echo": echo, "/whoami": whoami, "/surroundings": surroundings, "/redirect": redirect, "/hang": hang,
            "/block": block, "/die": die, "/endless": endless, "/stream": stream, "/page": page}
routes = [Route(path, handler, methods=["GET", "POST"]) for path, handler in HANDLERS.items()]
SHADOWS = ("/threads", "/threads/{id}", "/assistants/search", "/ok", "/store/items")
routes += [Route(path, shadow, methods=["GET", "PUT", "POST", "DELETE"]) for path in SHADOWS]
routes.append(Route("/{rest:path}", echo))  # whatever else arrives
app = Starlette(routes=routes)
"""
GRAPH = """
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

def answer(state: MessagesState, config: RunnableConfig):
    said = state["messages"][-1].text
    if said == "ask twice":
        said = f"{interrupt('May I water the beds?')} and {interrupt('May I clear the garden?')}"
    if said == "my role":
        said = config["configurable"].get("role", "nobody")
    return {"messages": [AIMessage(f"You said {said}")]}

builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
graph = builder.compile()
"""
STATED = {
    "graphs": {"agent": "./graph.py:graph"},
    "env": {"OF_THE_PROJECT": "yes"},
    "auth": {"path": "./project.py:auth"},
    "http": {"app": "./project.py:app"},
}


def write(folder: Path, **stated: Any) -> str:
    """Write the project into a folder. Return the setting that names its graph."""
    (folder / "project.py").write_text(PROJECT)
    (folder / "graph.py").write_text(GRAPH)
    said = {name: value for name, value in (STATED | stated).items() if value is not None}
    (folder / "langgraph.json").write_text(json.dumps(said))
    return f"[agents.agent0]\ngraph = {json.dumps(f'{folder}/langgraph.json:agent')}\n"
