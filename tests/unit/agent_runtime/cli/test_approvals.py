"""The list of approvals on a terminal."""

import pytest

from agent_runtime.cli.approvals import _COLUMNS
from turnkeeper.console import Output, show_rows


def test_a_narrow_terminal_shows_what_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row = {
        "interrupt_id": "f1573a64e8",
        "kind": "question",
        "channel": "post",
        "task_name": "nightly-orders",
        "created_at": "2026-11-26T19:32:49Z",
        "expires_at": None,
        "status": "pending",
        "decision": "",
        "thread_id": "t",
        "category": "orders",
        "message": "",
        "tool": "",
        "question": "Send it?",
        "args": {},
        "form": None,
        "value": {"question": "Send it?"},
        "requests": [],
        "missing_scope": "",
    }
    show_rows([row], _COLUMNS, Output.TABLE, name_key="interrupt_id")
    said = capsys.readouterr()
    assert "Send it?" in said.out
    assert "STATUS" in said.err
