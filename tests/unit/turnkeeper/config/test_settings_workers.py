"""How many workers there are: what `turnkeeper up N` asked for, kept for later starts."""

import pytest

from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, effective, load_settings, staffed, workers_asked_for
from turnkeeper.constellation.supervisor.up_down import ask_for_workers
from turnkeeper.errors import InvalidInput


def count(home: Home) -> int:
    return staffed(load_settings(home), home).agents["agent0"].workers


def test_what_was_asked_for_goes_before_the_config_and_says_where_it_is_from(home: Home) -> None:
    home.config.write_text("[agents.agent0]\nworkers = 2\n")
    assert (count(home), workers_asked_for(home)) == (2, None)
    assert ask_for_workers(home, 3)
    assert not ask_for_workers(home, 3), "nothing to start anew for"
    assert (count(home), workers_asked_for(home)) == (3, 3)
    sources = {key: source for key, _, source in effective(staffed(load_settings(home), home), home)}
    assert sources["agents.agent0.workers"] == str(home.workers)
    assert sources["agents.agent0.graph"] == "default"
    assert ask_for_workers(home, 0)
    assert count(home) == 0


def test_without_either_there_are_none(home: Home) -> None:
    assert staffed(load_settings(home), home) == Settings()


@pytest.mark.parametrize("text", ["", "x", "-1", "65", "1000", "٣"])
def test_a_file_that_holds_no_number_of_workers_is_refused_until_it_is_said_again(home: Home, text: str) -> None:
    home.workers.write_text(text)
    with pytest.raises(InvalidInput, match="turnkeeper up N"):
        workers_asked_for(home)
    assert ask_for_workers(home, 1)
    assert count(home) == 1
