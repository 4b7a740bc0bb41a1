"""`turnkeeper web open` names the reason if nothing serves the page."""

import socket

import pytest

from tests.support.program import app
from turnkeeper.config.home import Home
from turnkeeper.console import run
from turnkeeper.errors import EXIT_UNREACHABLE


def test_a_page_that_is_not_served_names_its_reason(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.create()

    def refused() -> str:
        assert run(app, ["--home", str(home.root), "web", "open", "--print"]) == EXIT_UNREACHABLE
        return capsys.readouterr().err

    home.config.write_text("")
    assert "set enabled = true below [web]" in refused()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        home.config.write_text(f"[web]\nenabled = true\nport = {port}\n")
        said = refused()
    assert f"another program uses port {port}" in said
    assert "set another port below [web]" in said
    said = refused()
    assert "set enabled" not in said
    assert "run: turnkeeper up" in said
