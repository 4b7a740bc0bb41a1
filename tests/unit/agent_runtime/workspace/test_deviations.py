"""What contradicts what: a table of pairs, and what holds for any texts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.model.words import sentences
from agent_runtime.workspace.deviations import MOST_DIFFERENCES, differences, quotes
from agent_runtime.workspace.model import LARGEST_BODY

OPEN = "The garden opens every Saturday from April to October."


@pytest.mark.parametrize(
    ("canonical", "other", "says"),
    [
        ("Plots: 42", "Plots: 40", ["Plots: 42"]),
        ("- Key  holder: Ada", "key holder: Bo", ["Key  holder: Ada"]),
        (OPEN, OPEN.replace("Saturday", "Sunday"), [OPEN]),
        (OPEN, OPEN.replace("October", "September"), [OPEN]),
        ("Forty-two plots are let.", "There.\n\n- 41 plots are\n  let.", ["Forty-two plots are let."]),
        ("It costs 3.50 a bag.", "It costs 4 a bag.", ["It costs 3.50 a bag."]),
        ("Due on 2026-03-01.", "Due on 2026-04-01.", ["Due on 2026-03-01."]),
        ("Ready on 20 November 2026.", "Ready on 21 November 2026.", ["Ready on 20 November 2026."]),
        ("Plots: 42\nOpen: yes", "Open: no\nPlots: 40", ["Plots: 42", "Open: yes"]),
    ],
)
def test_the_same_fact_with_another_value_contradicts(canonical: str, other: str, says: list[str]) -> None:
    assert [one.says for one in differences(canonical, other)] == says


@pytest.mark.parametrize(
    ("canonical", "other"),
    [
        ("Plots: 42", "plots:   42."),
        ("Forty-two plots are let.", "42 PLOTS are let"),
        ("Plots: 42", "The plots are many."),
        ("Plots: 42\nPlots: 43", "Plots: 40"),
        ("3 plots are free.\n\n4 plots are free.", "5 plots are free."),
        ("Open question: who waters?", "Open question: who digs?"),
        ("Are 3 plots free?", "Are 4 plots free?"),
        ("Source: https://a.example", "Source: https://b.example"),
        ("Slugs are welcome.", "Slugs are not welcome."),
        ("In 2025.", "In 2026."),
        ("", OPEN),
        (OPEN, ""),
    ],
)
def test_what_agrees_is_unclear_or_asks_does_not(canonical: str, other: str) -> None:
    assert differences(canonical, other) == []


def test_many_differences_are_bounded() -> None:
    one, other = ("\n".join(f"Key {letter}: {value}" for letter in "abcdefghijklmnop") for value in (1, 2))
    assert len(differences(one, other)) == MOST_DIFFERENCES


def test_a_statement_is_quoted_across_line_breaks_and_not_otherwise() -> None:
    assert quotes("Three plots\n  are free.", "plots are free")
    assert not quotes("Three plots are free.", "plots are let")


TEXTS = st.text(
    st.sampled_from("abz:.-# \n\t?*0123é\u202e\x1b") | st.characters(codec="utf-8"), max_size=200
) | st.lists(st.sampled_from(["Plots: 42", "Plots: 40", OPEN, "three are free", "", "- Due: Monday"]), max_size=6).map(
    "\n".join
)


@settings(max_examples=100, deadline=None)
@given(TEXTS, TEXTS)
def test_nothing_contradicts_itself_and_both_sides_tell_of_the_same_subjects(one: str, other: str) -> None:
    assert differences(one, one) == []
    there, back = differences(one, other), differences(other, one)
    assert {(found.says, found.found) for found in there} == {(found.found, found.says) for found in back}
    assert all(quotes(one, found.says) for found in there)


@pytest.mark.parametrize("piece", ["\n", "Plots: 42\n", "a: x" + " " * 50])
def test_a_hostile_page_is_read_in_the_time_that_its_length_takes(piece: str) -> None:
    page = piece * (LARGEST_BODY // len(piece))
    assert differences(page, page + "x") == []
    assert len(sentences(page)) <= 1, "it ends, and not after minutes"
