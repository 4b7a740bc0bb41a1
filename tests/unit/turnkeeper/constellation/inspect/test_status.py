"""What a planned handoff says of daemons that do not answer."""

from turnkeeper.config.home import Home
from turnkeeper.constellation.inspect.status import handoff_text


def test_what_no_daemon_answers_for_is_said_to_be_unknown(home: Home):
    lines = handoff_text(home, "  water the beds\n").splitlines()
    told = dict(line.split(": ", 1) for line in lines[1:5])
    assert set(told) == {"open turns", "decisions waiting for the author", "armed tasks", "tasks with held fires"}
    assert all(said.startswith("unknown (") for said in told.values()), "never none"
    assert lines[5:] == ["notes:", "water the beds"]
    assert handoff_text(home, " ").endswith("notes: none")
