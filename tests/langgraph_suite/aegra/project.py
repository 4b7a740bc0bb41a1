"""The login and the HTTP routes that aegra's end-to-end tests name: tokens say who calls, and of which role and team."""

import re
from typing import Any

from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN = re.compile(r"Bearer mock-jwt-(\w+)-(\w+)-(\w+)")
FIELDS = ("identity", "display_name", "is_authenticated", "role", "subscription_tier", "team_id", "email")
auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> dict[str, Any]:
    found = TOKEN.fullmatch(authorization or "")
    if found is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="the token is not valid")
    name, role, team = found.groups()
    return {
        "identity": name,
        "display_name": f"User {name}",
        "permissions": [role, f"{role}:read", f"{role}:write"],
        "role": role,
        "subscription_tier": "premium" if role in {"admin", "premium"} else "free",
        "team_id": team,
        "email": f"{name}@example.com",
    }


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: Any) -> dict[str, str]:
    """Confine a user to the threads of the team, and mark new ones."""
    value.setdefault("metadata", {})["team_id"] = ctx.user["team_id"]
    return {"team_id": ctx.user["team_id"]}


@auth.on.assistants.create
async def mark_assistant(ctx: Auth.types.AuthContext, value: Any) -> None:
    value.setdefault("metadata", {}).update(created_by=ctx.user.identity, team_id=ctx.user["team_id"])


@auth.on.assistants.delete
async def only_admins(ctx: Auth.types.AuthContext, value: Any) -> bool:
    return bool(ctx.user["role"] == "admin")


async def whoami(request: Request) -> Response:
    fields = {name: getattr(request.user, name) for name in FIELDS}
    return JSONResponse({**fields, "permissions": request.user.permissions})


async def public(request: Request) -> Response:
    return JSONResponse({"message": "anyone with a login"})


async def protected(request: Request) -> Response:
    return JSONResponse({"user": request.user.identity})


ROUTES = {"/custom/whoami": whoami, "/custom/public": public, "/custom/protected": protected}
app = Starlette(routes=[Route(path, handler) for path, handler in ROUTES.items()])
