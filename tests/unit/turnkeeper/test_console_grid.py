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


def test_columns_of_the_highest_rank_are_left_out_first() -> None:
    grid = Grid(
        headers=["NAME", "SCHEDULE", "STATE", "RESULT", "FIRES"],
        cells=[["digest", "0 9 * * 1-5", "active", "succeeded", "12"]],
        right=[False] * 5,
        ranks=[0, 1, 0, 0, 2],
    )
    assert [grid.lines(width)[1] for width in (50, 44, 30)] == [[], ["FIRES"], ["SCHEDULE", "FIRES"]]
    assert list(grid.lines(30)[0]) == ["NAME    STATE   RESULT", "digest  active  succeeded"]


def test_a_cell_is_not_cut_below_the_narrowest_width() -> None:
    grid = Grid(headers=["NAME", "NEXT"], cells=[["n" * 30, "Nov 27 09:00 UTC"]], right=[False] * 2, narrowest=16)
    lines, hidden = grid.lines(36)
    assert (list(lines)[1], hidden) == (f"{'n' * 17}…  Nov 27 09:00 UTC", [])
    assert grid.lines(33)[1] == ["NEXT"]
