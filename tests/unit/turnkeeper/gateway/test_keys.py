"""Keys of clients, login tokens and sessions."""

import json
from datetime import timedelta

import pytest

from tests.support.clock import ManualClock
from turnkeeper.config.home import Home
from turnkeeper.console import program, run
from turnkeeper.console.commands import Program
from turnkeeper.constellation.peers.pairing import open_identity
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, NotFound
from turnkeeper.gateway import keys as module
from turnkeeper.gateway.keys import Keys, Scope, Sessions, sign_token
from turnkeeper.storage.keys import PURPOSES, KeyFile

ENTROPY = SystemEntropy()


def test_a_key_is_told_once_kept_as_a_digest_found_by_itself_alone_and_revoked(home: Home, clock: ManualClock) -> None:
    keys = Keys(home)
    assert keys.all() == ()
    assert keys.find("tk-x") is None
    key, text = keys.make("editor", "work", clock.now(), ENTROPY)
    assert text not in keys.path.read_text()
    assert keys.path.stat().st_mode & 0o777 == 0o600
    assert Keys(home).find(text) == key
    assert key.allows is Scope.WORK
    for other in (text[:-1] + ("0" if text[-1] != "0" else "1"), text.upper(), text + " ", "", "tk-\udcff"):
        assert keys.find(other) is None
    with pytest.raises(Conflict):
        keys.make("editor", "read", clock.now(), ENTROPY)
    Keys(home).revoke("editor")
    assert keys.find(text) is None, "another process took it away"
    with pytest.raises(NotFound):
        keys.revoke("editor")


@pytest.mark.parametrize(("name", "scope"), [("", "work"), ("a b", "work"), ("a/b", "work"), ("a", "admin"), ("a", "")])
def test_what_is_no_name_or_no_scope_is_refused(home: Home, clock: ManualClock, name: str, scope: str) -> None:
    with pytest.raises(InvalidInput):
        Keys(home).make(name, scope, clock.now(), ENTROPY)


def test_a_file_that_others_can_read_or_that_is_something_else_is_refused(home: Home, clock: ManualClock) -> None:
    keys = Keys(home)
    keys.make("a", "read", clock.now(), ENTROPY)
    keys.path.chmod(0o644)
    with pytest.raises(Corrupt, match="chmod 600"):
        Keys(home).all()
    keys.path.chmod(0o600)
    for text in (
        "",
        "[]",
        '{"v": 2, "login": "", "keys": []}',
        json.dumps({"v": 1, "login": "0" * 64, "keys": [{"id": 1}]}),
    ):
        keys.path.write_text(text)
        with pytest.raises(Corrupt):
            Keys(home).all()


def test_a_token_holds_for_a_minute_once_and_at_one_process(home: Home, clock: ManualClock) -> None:
    keys = Keys(home)
    keys.create(ENTROPY)
    secret = keys.login_secret()
    sessions = Sessions(keys, clock, ENTROPY)
    token = sign_token(secret, clock.now(), ENTROPY)
    assert sessions.log_in(token, plain_host=True) is None, "made for the name"
    cookie = sessions.log_in(token, plain_host=False)
    assert cookie is not None
    assert sessions.log_in(token, plain_host=False) is None, "used"
    assert sessions.log_in(sign_token(secret, clock.now(), ENTROPY, plain_host=True), plain_host=True) is not None
    assert sessions.log_in(sign_token("0" * 64, clock.now(), ENTROPY), plain_host=False) is None, "another home's"
    late = sign_token(secret, clock.now(), ENTROPY)
    assert sessions.log_in(sign_token(secret, clock.now() + timedelta(minutes=2), ENTROPY), plain_host=False) is None
    clock.advance(61)
    assert sessions.log_in(late, plain_host=False) is None
    fresh = sign_token(secret, clock.now(), ENTROPY)
    clock.advance(1)
    assert Sessions(keys, clock, ENTROPY).log_in(fresh, plain_host=False) is None, "made before this process began"
    session = sessions.find(cookie)
    assert session is not None
    assert sessions.find("") is sessions.find(session.id) is None, "the digest logs nobody in"
    sessions.log_out(session)
    assert sessions.find(cookie) is None


def test_a_session_ends_after_a_day_without_a_request_and_the_oldest_gives_way(home: Home, clock: ManualClock) -> None:
    keys = Keys(home)
    keys.create(ENTROPY)
    sessions = Sessions(keys, clock, ENTROPY)

    def log_in() -> str:
        cookie = sessions.log_in(sign_token(keys.login_secret(), clock.now(), ENTROPY), plain_host=False)
        assert cookie is not None
        return cookie

    first = log_in()
    clock.advance(module.SESSION_S - 1)
    assert sessions.find(first) is not None
    clock.advance(module.SESSION_S + 1)
    assert sessions.find(first) is None
    opened = [log_in() for _ in range(module.MOST_SESSIONS + 1)]
    assert sum(sessions.find(one) is not None for one in opened) == module.MOST_SESSIONS


def test_sessions_outlive_the_process_and_their_file_logs_no_browser_in(home: Home, clock: ManualClock) -> None:
    keys = Keys(home)
    keys.create(ENTROPY)
    sessions = Sessions(keys, clock, ENTROPY)

    def log_in() -> str:
        cookie = sessions.log_in(sign_token(keys.login_secret(), clock.now(), ENTROPY), plain_host=False)
        assert cookie is not None
        return cookie

    used, idle, left = log_in(), log_in(), log_in()
    found = sessions.find(left)
    assert found is not None
    sessions.log_out(found)
    assert used not in keys.sessions.read_text()
    assert keys.sessions.stat().st_mode & 0o777 == 0o600
    clock.advance(module.SESSION_S / 2)
    page_key = getattr(sessions.find(used), "page_key", "")
    clock.advance(module.SESSION_S / 2 + 1)
    later = Sessions(keys, clock, ENTROPY)
    assert getattr(later.find(used), "page_key", "") == page_key != ""
    assert later.find(idle) is None, "a day without a request"
    assert later.find(left) is None, "it logged out"
    keys.sessions.write_text('{"v": 1, "sessions": [["cut')
    assert Sessions(keys, clock, ENTROPY).find(used) is None


def test_keys_list_names_every_key_of_the_home_and_no_secret(
    home: Home, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    for purpose in PURPOSES:
        KeyFile(home, purpose).create(clock.now(), ENTROPY, lambda key: None)
    peers = open_identity(home, ENTROPY, clock.now()).fingerprint
    keys = Keys(home)
    editor, text = keys.make("editor", "work", clock.now(), ENTROPY)
    capsys.readouterr()
    assert run(program(), ["--home", str(home.root), "keys", "list", "--json"], Program) == 0
    out = capsys.readouterr().out
    found = {row["purpose"]: row["key"] for row in json.loads(out)}
    assert found.keys() == {*PURPOSES, "web", "web: editor", "peers"}
    assert (found["web: editor"], found["peers"]) == (editor.id, peers)
    assert {path.stem for path in home.keys.glob("*.json")} == {name.partition(":")[0] for name in found}
    assert keys.login_secret() not in out
    assert text not in out
    assert run(program(), ["--home", str(home.root), "keys", "list"], Program) == 0
    assert run(program(), ["keys", "rotate", "-h"], Program) == 0
    assert all(purpose in capsys.readouterr().out for purpose in ("audit",))
