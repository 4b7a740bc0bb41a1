"""The page in the browser, under `/ui`: rendered on the server, refreshed by htmx and small scripts of our own."""

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from turnkeeper.errors import TurnkeeperError
from turnkeeper.gateway.calls import Gateway, Offered
from turnkeeper.gateway.door import PLAIN_HOSTS
from turnkeeper.gateway.page.acts import Acts
from turnkeeper.gateway.page.live import Live
from turnkeeper.gateway.page.reads import Reads
from turnkeeper.gateway.page.shell import FOLDER, Shell


def surface(gateway: Gateway) -> Offered:
    shell = Shell(gateway)
    reads = Reads(shell)
    acts, live = Acts(shell, reads), Live(shell)

    async def start(request: Request) -> Response:
        port = gateway.settings.web.port
        plain = request.headers["host"].rpartition(":")[0] in PLAIN_HOSTS
        by_name = f"http://turnkeeper.localhost:{port}/" if plain else ""
        return shell.plain("frame/plain.html", title="Log in", error="", login=True, by_name=by_name)

    def bounded(answer: Any) -> Any:
        async def handler(request: Request) -> Response:
            shell.begin()
            response: Response = await answer(request)
            return response

        return handler

    routes: list[Any] = [
        Route("/", start),
        Route("/ui", lambda _request: RedirectResponse("/ui/")),
        Route("/ui/alive", lambda _request: Response(status_code=204)),
        Mount("/ui/static", StaticFiles(directory=FOLDER / "static")),
        Route("/ui/live", live.stream),
        *(Route(path, bounded(answer), methods=["GET"]) for path, answer in reads.routes().items()),
        *(Route(path, bounded(answer), methods=["POST"]) for path, answer in acts.routes().items()),
    ]
    return Offered(Starlette(routes=routes, exception_handlers={TurnkeeperError: shell.problem}))
