"""Where a home is found: by an option, by the environment, by default, and where it was moved."""

import os
from pathlib import Path

import pytest

from turnkeeper.config.home import MOVED, Home, locate, places
from turnkeeper.errors import InvalidInput


def word(path: Path, then: Path, mode: int = 0o600) -> Path:
    path.write_text(f"{MOVED}{then}\nwords for people\n")
    path.chmod(mode)
    return path


def test_an_option_goes_before_the_environment_and_that_before_the_default(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "TURNKEEPER_HOME": str(tmp_path / "b")}
    assert locate(tmp_path / "a", environ) == Home(root=tmp_path / "a")
    assert locate(None, environ) == Home(root=tmp_path / "b")
    assert locate(None, {"HOME": str(tmp_path), "TURNKEEPER_HOME": ""}) == Home(root=tmp_path / ".turnkeeper")


def test_the_word_that_a_home_left_leads_to_it_however_the_place_was_named_and_often_it_moved(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    word(tmp_path / ".turnkeeper", tmp_path / "b")
    word(tmp_path / "b", tmp_path / "c")
    for option, environ in ((tmp_path / ".turnkeeper", {}), (None, {"HOME": str(tmp_path)})):
        assert locate(option, environ) == Home(root=tmp_path / "c")
    assert places(tmp_path / ".turnkeeper", {}) == [tmp_path / "c", tmp_path / "b", tmp_path / ".turnkeeper"]


def test_a_home_that_is_not_where_it_was_moved_is_missed_and_never_made_anew(tmp_path: Path) -> None:
    word(tmp_path / "a", tmp_path / "disk" / "home")
    with pytest.raises(InvalidInput, match=r"moved to .*/disk/home, but is not there; mount it; or .*remove .*/a$"):
        locate(tmp_path / "a", {})


def test_words_that_lead_in_a_circle_are_an_error(tmp_path: Path) -> None:
    word(tmp_path / "a", tmp_path / "b")
    word(tmp_path / "b", tmp_path / "a")
    with pytest.raises(InvalidInput, match="circle"):
        locate(tmp_path / "a", {})


def test_only_a_word_of_ones_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(InvalidInput, match="written by others"):
        locate(word(tmp_path / "a", tmp_path / "home", 0o622), {})
    (tmp_path / "link").symlink_to(word(tmp_path / "b", tmp_path / "home"))
    (tmp_path / "text").write_text("something else")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "text", "pipe"):
        assert locate(tmp_path / name, {}) == Home(root=tmp_path / name)
    assert locate(word(tmp_path / "c", Path("relative")), {}) == Home(root=tmp_path / "c")


def test_the_word_of_another_user_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    word(tmp_path / "a", tmp_path / "home")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InvalidInput, match="belongs to another user"):
        locate(tmp_path / "a", {})
