"""The page in the browser, under `/ui`."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.calls import Gateway, Surface
from gateway.guard import PLAIN_HOSTS, cookie_name


def surface(gateway: Gateway) -> Surface:
    """Return the surface."""

    async def log_in(request: Request) -> Response:
        host = request.headers["host"].rpartition(":")[0]
        session = gateway.sessions.log_in(request.scope["form"].get("token", ""), plain_host=host in PLAIN_HOSTS)
        if session is None:
            return PlainTextResponse("this token is not valid here, was used, or is older than a minute", 403)
        answer = Response(status_code=303, headers={"location": "/ui/"})
        answer.set_cookie(cookie_name(gateway.settings.web.port), session.id, httponly=True, samesite="strict")
        return answer

    async def today(_request: Request) -> Response:
        return PlainTextResponse("today")

    async def start(_request: Request) -> Response:
        return PlainTextResponse("run: turnkeeper web open")

    routes = [Route("/", start), Route("/ui/login", log_in, methods=["POST"]), Route("/ui/", today)]
    return Surface(Starlette(routes=routes))
