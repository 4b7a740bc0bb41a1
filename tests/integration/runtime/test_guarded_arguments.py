"""What an author approves is what runs: arguments that were edited, injected, or that a model wrote where none belong."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.tools import InjectedState, InjectedStore, ToolRuntime
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import SecretStr, ValidationError

from agent_runtime.graph.guard import Gate, Guard
from agent_runtime.permissions.judge import judge
from tests.integration.runtime.guarded import WAYS, Thread, act, calling, free, fresh_desk, of_node, plain, ran, turn
from tests.support.scripted import ScriptedModel, calls


@pytest.fixture(autouse=True)
def gate() -> Iterator[Gate]:
    with fresh_desk() as made:
        yield made


async def test_an_edit_runs_the_authors_arguments_with_what_langgraph_injects() -> None:
    @tool
    def informed(text: str, runtime: ToolRuntime, state: Annotated[dict[str, Any], InjectedState()]) -> str:
        """Act, knowing the state."""
        ran.append(f"{text} {runtime.tool_call_id is not None} {len(state['messages'])}")
        return "done"

    thread = Thread(plain(informed, lines=[calls(("informed", {"text": "a"}))]), turn())
    (asked,) = await thread.go()
    assert asked.args == {"text": "a"}, "what is injected is not the author's to read"
    await thread.decide((asked, "edit"), args={"text": "better", "state": {"messages": []}})
    assert ran == ["better True 2"]


@pytest.mark.parametrize(
    ("edited", "runs"), [({"input": "list"}, ["list"]), ({"text": "list"}, ["list"]), ({"other": "list"}, []), ({}, [])]
)
async def test_an_edit_of_a_call_by_text_never_runs_the_text_that_was_edited(edited: Any, runs: list[str]) -> None:
    def node(_state: Any) -> Any:
        try:
            return {"messages": [AIMessage(act.invoke("erase"))]}
        except ValidationError as error:
            return {"messages": [AIMessage(str(error))]}

    thread = Thread(of_node(node, InMemorySaver()), turn())
    (asked,) = await thread.go()
    assert asked.args == {"input": "erase"}
    assert await thread.decide((asked, "edit"), args=edited) == []
    assert ran == runs


async def test_tools_with_state_store_runtime_and_call_id_work_as_before() -> None:
    @tool
    async def wise(
        text: str,
        call_id: Annotated[str, InjectedToolCallId],
        messages: Annotated[list[Any], InjectedState("messages")],
        store: Annotated[BaseStore, InjectedStore()],
        runtime: ToolRuntime,
    ) -> Command[Any]:
        """Act, knowing all."""
        await store.aput(("a",), text, {"n": len(messages)})
        ran.append(f"{text} {call_id == runtime.tool_call_id} {runtime.store is store}")
        return Command(update={"messages": [ToolMessage(f"did {text}", tool_call_id=call_id)]})

    store = InMemoryStore()
    lines = [calls(("wise", {"text": "a"}), ("wise", {"text": "b"}), ("free", {"text": "c"}))]
    thread = Thread(plain(wise, free, lines=lines, store=store), turn("tool:wise", "tool:free"))
    assert await thread.go() == []
    assert sorted(ran) == ["a True True", "b True True", "free c"]
    assert await thread.told() == ["did a", "did b", "did c"]
    assert store.get(("a",), "a").value == {"n": 2}  # type: ignore[union-attr]


async def test_what_a_node_injects_by_itself_is_part_of_what_the_author_approves() -> None:
    users = iter(["ada", "eve", "eve"])

    @tool
    def act_for(text: str, user: Annotated[str, InjectedToolArg]) -> str:
        """Act for somebody."""
        ran.append(f"{text} for {user}")
        return "done"

    thread = Thread(
        of_node(lambda _: act_for.invoke({"text": "a", "user": next(users)}) and {}, InMemorySaver()), turn()
    )
    (asked,) = await thread.go()
    assert asked.args == {"text": "a", "user": "ada"}
    (anew,) = await thread.decide((asked, "approve"))
    assert (anew.args, ran) == ({"text": "a", "user": "eve"}, [])


async def test_what_a_model_writes_for_an_injected_argument_is_what_the_author_approves() -> None:
    @tool
    def pay(
        amount: int,
        accounts: Annotated[list[str], InjectedToolArg],
        state: Annotated[dict[str, Any], InjectedState()],
        runtime: str,
    ) -> str:
        """Pay."""
        ran.append(f"{amount} {accounts} {state} {runtime}")
        return "paid"

    shop = {"amount": 1, "accounts": ["shop"], "state": {"limit": 1}, "runtime": "test"}
    for name, other in (("accounts", ["thief"]), ("state", {"limit": 9}), ("runtime", "live --force")):
        thread = Thread(calling(pay, shop, shop | {name: other}), turn())
        (asked,) = await thread.go()
        assert asked.args == shop
        (anew,) = await thread.decide((asked, "approve"))
        assert (anew.args, ran) == (shop | {name: other}, [])


@dataclass(frozen=True)
class Payee:
    """What a node makes of a model's words."""

    name: str
    through: object


async def test_an_object_that_a_node_injects_is_shown_by_what_it_says_and_given_as_it_is() -> None:
    @tool
    def pay(amount: int, to: Annotated[Any, InjectedToolArg], through: Annotated[Any, InjectedToolArg]) -> str:
        """Pay."""
        ran.append(f"{amount} {to.name} {to.through is bank} {through is bank}")
        return "paid"

    bank = object()

    def node(_state: Any) -> Any:
        return pay.invoke({"amount": 1, "to": Payee(name="shop", through=bank), "through": bank}) and {}

    thread = Thread(of_node(node, InMemorySaver()), turn())
    (asked,) = await thread.go()
    assert asked.args == {"amount": 1, "to": {"name": "shop", "through": "<object>"}}
    assert await thread.decide((asked, "edit"), args={**asked.args, "amount": 2}) == []
    assert ran == ["2 shop True True"]


@WAYS
async def test_what_a_model_writes_for_an_injected_argument_is_lost_in_a_toolnode(way: str) -> None:
    @tool
    def informed(
        text: str,
        state: Annotated[dict[str, Any], InjectedState()],
        messages: Annotated[list[Any], InjectedState("messages")],
    ) -> str:
        """Act, knowing the state."""
        ran.append(f"{text} {len(messages)} {len(state['messages'])}")
        return "done"

    forged = {"text": "a", "state": {"messages": []}, "messages": []}
    thread = Thread(plain(informed, lines=[calls(("informed", forged))]), turn(), way)
    (asked,) = await thread.go()
    assert asked.args == {"text": "a"}
    assert await thread.decide((asked, "approve")) == []
    assert ran == ["a 2 2"]


async def test_our_agent_asks_once_for_a_call_whose_injected_argument_a_model_wrote() -> None:
    @tool
    def pay(
        amount: int,
        messages: Annotated[list[Any], InjectedState("messages")],
        accounts: Annotated[list[str] | None, InjectedToolArg] = None,
    ) -> str:
        """Pay."""
        ran.append(f"{amount} {accounts} {len(messages)}")
        return "paid"

    model = ScriptedModel(script={"go": [calls(("pay", {"amount": 1, "accounts": ["thief"], "messages": []}))]})
    agent = create_agent(model, [pay], middleware=[Guard(Gate({}, judge))], checkpointer=InMemorySaver())
    thread = Thread(agent, turn())
    (asked,) = await thread.go()
    assert await thread.decide((asked, "approve")) == []
    assert ran == ["1 None 2"]


async def test_a_call_that_cannot_be_written_down_is_refused_and_its_caller_reads_why() -> None:
    thread = Thread(plain(act, lines=[calls(("act", {"text": "half \ud83d"})), calls(("free", {}))]), turn())
    assert await thread.go() == [], "nobody is asked"
    told = await thread.told()
    assert "cannot be put to the author, and was not run: the argument text holds half a character" in told[0]

    @tool
    def send(through: Any) -> str:
        """Send."""
        ran.append("sent")
        return "done"

    thread = Thread(of_node(lambda _: send.invoke({"through": object()}) and {}, InMemorySaver()), turn())
    with pytest.raises(ToolException, match="argument through is an object of builtins.object"):
        await thread.go()
    assert ran == []
    granted = Thread(thread.graph, turn("tool:send"))
    assert await granted.go() == [], "what nobody has to approve needs no writing down"
    assert ran == ["sent"]


async def test_a_secret_that_a_node_injects_is_compared_and_not_shown() -> None:
    keys = iter(["good", "evil", "evil"])

    @tool
    def log_in(user: str, key: Annotated[Any, InjectedToolArg]) -> str:
        """Log in."""
        ran.append(f"{user} {key.get_secret_value()}")
        return "done"

    def node(_state: Any) -> Any:
        return log_in.invoke({"user": "ada", "key": SecretStr(next(keys))}) and {}

    thread = Thread(of_node(node, InMemorySaver()), turn())
    (asked,) = await thread.go()
    assert asked.args == {"user": "ada", "key": "**********"}
    (anew,) = await thread.decide((asked, "approve"))
    assert (anew.args, ran) == (asked.args, [])
