"""A page of a list, and what is said of the rest."""

import pytest

from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.rpc.pages import after, page_of

ROWS = [{"id": f"c-{number}", "state": "open" if number % 2 else "over"} for number in range(1, 8)]


def pages(rows: list[dict[str, str]], limit: int, **status: object) -> list[list[str]]:
    found, cursor = [], ""
    while True:
        shown, told = page_of(rows, "id", limit=limit, cursor=cursor, **status)
        found.append([row["id"] for row in shown])
        if not (cursor := told["next_cursor"]):
            return found


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8])
def test_pages_together_are_the_list(limit: int) -> None:
    found = pages(ROWS, limit)
    assert [id_ for page in found for id_ in page] == [row["id"] for row in ROWS]
    assert all(len(page) == limit for page in found[:-1])
    assert found[-1]
    assert page_of([], "id", limit=limit, cursor="") == ([], {"total": 0, "next_cursor": ""})


def test_the_total_is_that_of_the_status() -> None:
    status = {"status": "open", "of": "state", "known": ("open", "over")}
    assert page_of(ROWS, "id", limit=2, cursor="", **status)[1]["total"] == 4
    assert pages(ROWS, 2, **status) == [["c-1", "c-3"], ["c-5", "c-7"]]
    with pytest.raises(InvalidInput, match="no row here can have the status"):
        page_of(ROWS, "id", limit=2, cursor="", **status | {"status": "lost"})


def test_what_comes_and_goes_elsewhere_shifts_nothing_and_a_row_that_is_gone_is_told() -> None:
    cursor = page_of(ROWS, "id", limit=3, cursor="")[1]["next_cursor"]
    assert page_of(ROWS[1:], "id", limit=1, cursor=cursor)[0] == [ROWS[3]]
    with pytest.raises(Conflict, match="is gone"):
        page_of(ROWS[3:], "id", limit=1, cursor=cursor)


@pytest.mark.parametrize("cursor", ["x", "ä", after("c-1")[:-2] + "!", "YWZ0ZXIgMw=="])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidInput, match="is not a cursor"):
        page_of(ROWS, "id", limit=1, cursor=cursor)
