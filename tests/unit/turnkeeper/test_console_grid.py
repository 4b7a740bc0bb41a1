"""Tables fitted to a terminal."""

from turnkeeper.console import Grid

GRID = Grid(
    headers=["NAME", "PROMPT", "FIRES"],
    cells=[["digest", "Summarise everything that happened since", "12"], ["計画", "Plan", "3"]],
    right=[False, False, True],
)


def test_without_a_width_every_cell_is_whole() -> None:
    lines, hidden = GRID.lines()
    assert list(lines) == [
        "NAME    PROMPT                                    FIRES",
        "digest  Summarise everything that happened since     12",
        "計画    Plan                                          3",
    ]
    assert not hidden


def test_the_widest_column_is_cut_where_that_is_enough() -> None:
    lines, hidden = GRID.lines(40)
    assert list(lines)[1] == "digest  Summarise everything tha…     12"
    assert not hidden


def test_the_last_columns_are_left_out_and_named_where_it_is_not() -> None:
    lines, hidden = GRID.lines(34)
    assert [line.split()[0] for line in lines] == ["NAME", "digest", "計画"]
    assert hidden == ["FIRES"]


def test_the_first_column_always_stands() -> None:
    lines, hidden = GRID.lines(1)
    assert list(lines) == ["NAME", "digest", "計画"]
    assert hidden == ["PROMPT", "FIRES"]


def test_a_last_column_that_is_of_no_use_in_part_is_whole() -> None:
    path = "/srv/agents/of/somebody/logs/agent-runtime.log"
    grid = Grid(headers=["PROCESS", "LOG"], cells=[["agent-runtime", path]], right=[False, False], whole=1)
    lines, hidden = grid.lines(30)
    assert list(lines)[1] == f"agent-runtime  {path}"
    assert not hidden
