"""Whatever a model, a tool or an author writes: a turn keeps it as every database can, or it is refused by name."""

import json

import pytest
from langchain_core.messages import AIMessage

from tests.integration.runtime.harness import STATES, Bench
from tests.support.awkward import TEXTS
from tests.support.scripted import calls
from turnkeeper.errors import InvalidInput

KEPT = TEXTS | {"NUL": "a?b", "half": "half ? of a character"}


@pytest.mark.parametrize("name", TEXTS)
async def test_what_a_turn_says_does_and_asks_is_kept(bench: Bench, name: str) -> None:
    text, kept = TEXTS[name], KEPT[name]
    bench.script["go"] = [calls(("note", {"text": text})), AIMessage(f"said {text}.")]
    event = await bench.run()
    assert event.state == STATES.SUCCEEDED, event.error
    assert bench.noted == [text]
    (turn,) = await bench.conversation()
    said = [line.text for line in turn.messages]
    assert f"said {kept}." in said
    assert f"noted {kept}" in said or name == "long"  # a tool's result of that length is cut


@pytest.mark.parametrize("name", TEXTS)
async def test_a_question_is_asked_as_it_can_be_kept(bench: Bench, name: str) -> None:
    bench.script["go"] = [calls(("ask", {"question": f"Is it {TEXTS[name]}?"}))]
    event = await bench.run()
    assert event.state == STATES.INTERRUPTED, event.error
    (asked,) = await bench.pending()
    assert asked.question == f"Is it {KEPT[name]}?"
    assert (await bench.resolve(asked.interrupt_id, "answer", message="so it is")).status == "resolved"
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED


async def test_what_an_author_says_is_kept(bench: Bench) -> None:
    for name, text in TEXTS.items():
        if name in {"half", "empty", "long"}:  # the wire takes no half of a character, and a message is not empty
            continue
        sent = await bench.send(f"to {text}.")
        await bench.stopped(sent.turn_id)
        assert (await bench.conversation())[-1].messages[0].text == f"to {KEPT[name]}."
    with pytest.raises(InvalidInput, match="is longer than"):
        await bench.send(TEXTS["long"])


@pytest.mark.parametrize("name", ["NUL", "letters", "spaces"])
async def test_an_answer_reaches_the_graph_and_is_kept(bench: Bench, name: str) -> None:
    bench.script["go"] = [calls(("ask", {"question": "Is it?"}))]
    event = await bench.run()
    (asked,) = await bench.pending()
    decided = await bench.resolve(asked.interrupt_id, "answer", message=TEXTS[name])
    assert decided.message == KEPT[name]
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED


async def test_a_decision_given_again_is_the_same_one(bench: Bench) -> None:
    bench.category("narrow")
    bench.script["go"] = [calls(("note", {"text": TEXTS["NUL"]})), AIMessage("done")]
    event = await bench.run(category="narrow")
    (asked,) = await bench.pending()
    assert json.loads(asked.args_json) == {"text": TEXTS["NUL"]}, "JSON has a spelling for NUL"
    for _ in ("first", "again"):
        assert (await bench.resolve(asked.interrupt_id, "reject", message=TEXTS["NUL"])).message == KEPT["NUL"]
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
