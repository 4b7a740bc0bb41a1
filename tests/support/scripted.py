"""A chat model that reads its lines from a script."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class ScriptedModel(BaseChatModel):
    """A model that answers the n-th time after a prompt with the n-th line of the prompt's script, then with `done`."""

    script: Any  # the test's own object: a typed field would be a copy of it

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        asked = max(at for at, message in enumerate(messages) if isinstance(message, HumanMessage))
        lines = self.script.get(str(messages[asked].content), [])
        said = sum(isinstance(message, AIMessage) for message in messages[asked:])
        line = lines[said] if said < len(lines) else AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=line.model_copy())])


def calls(*named: tuple[str, Mapping[str, Any]]) -> AIMessage:
    """Return a model's message that calls these tools. Ids count up over the test."""
    made = [{"name": name, "args": dict(args), "id": f"call-{id(args)}-{at}"} for at, (name, args) in enumerate(named)]
    return AIMessage("", tool_calls=made)
