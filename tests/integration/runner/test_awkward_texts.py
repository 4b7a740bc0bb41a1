"""Whatever an author writes into a task: the store gives it back as it was, or it is refused by its field's name."""

import json

import pytest

from tests.integration.runner.conftest import Rig
from tests.support.awkward import NAMES, TEXTS
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

REFUSED = {"NUL": "contains a NUL character", "empty": "is required", "long": "is longer than"}
SPOKEN = {name: text for name, text in TEXTS.items() if name != "half"}  # the wire takes no half of a character


@pytest.mark.parametrize("name", SPOKEN)
async def test_a_prompt_is_given_back_or_refused(rig: Rig, name: str) -> None:
    if name in REFUSED:
        with pytest.raises(InvalidInput, match=REFUSED[name]) as refused:
            await rig.create("digest", prompt=SPOKEN[name])
        assert refused.value.where == "prompt"
        assert not (await rig.service.list_tasks(wire.ListTasksRequest())).tasks
    else:
        await rig.create("digest", prompt=SPOKEN[name])
        assert (await rig.task()).spec.prompt == SPOKEN[name]
        again = rig.again()
        assert (await again.task()).spec.prompt == SPOKEN[name]
        await again.close()


@pytest.mark.parametrize("name", SPOKEN)
async def test_the_reason_of_a_pause_is_given_back_or_refused(rig: Rig, name: str) -> None:
    await rig.create("digest")
    asked = wire.PauseTaskRequest(name="digest", note=SPOKEN[name])
    if name == "NUL":
        with pytest.raises(InvalidInput, match="NUL") as refused:
            await rig.service.pause_task(asked)
        assert refused.value.where == "note"
        assert (await rig.task()).state == "active"
    else:
        assert (await rig.service.pause_task(asked)).paused_note == SPOKEN[name]
        assert (await rig.task()).paused_note == SPOKEN[name]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_is_none_is_refused_before_any_database_sees_it(rig: Rig, name: str) -> None:
    if name in {"ab", "a-b", "z10", "z9"}:
        assert (await rig.create(name)).spec.name == name
    else:
        with pytest.raises(InvalidInput) as refused:
            await rig.create(name)
        assert refused.value.where == "name"


@pytest.mark.parametrize("name", SPOKEN)
async def test_a_payload_keeps_every_character_that_json_spells(rig: Rig, name: str) -> None:
    text = SPOKEN[name][:1000]
    await rig.create("digest", payload_json=json.dumps({"text": text}))
    assert json.loads((await rig.task()).spec.payload_json) == {"text": text}
