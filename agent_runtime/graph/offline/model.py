"""The rules as a chat model, which answers LangChain's messages with tool calls or text, always the same for a turn.

An answer can also be streamed in pieces, as other models stream.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from agent_runtime.graph.offline.conversation import digest, give_up, reply
from agent_runtime.graph.offline.rules import Brief, Done, Exchange, Rule, Step
from agent_runtime.model.mapping import canonical
from agent_runtime.model.turn import TurnContext
from turnkeeper.clock import Clock
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import Entropy, SystemEntropy

NAME = "offline"
CHARS_PER_TOKEN = 4
MOST_PIECES = 40  # characters of one piece of an answer
PIECE_S = 0.02  # pause between the pieces of a streamed answer
_WORDS = re.compile(r"\S+\s*|\s+")
_WRAPPER = re.compile(r"\A<channel [^>]*>|</channel>\Z")
_OWN: dict[str, Rule] = {
    "summary.propose": digest,
    **(offered("loop-jobs") or {}),
    **(offered("knowledge-jobs") or {}),
}
_FIRST = ("loop.wakeup", "revalidation.next", "summary.propose", "web.fetch", "memory.forget")
# By scope: the job of a fire whose category grants the scope. The first granted scope counts.
_JOBS: tuple[tuple[str, Rule], ...] = (
    *((scope, _OWN[scope]) for scope in _FIRST if scope in _OWN),
    *(offered("jobs") or ()),
)
_ORDERS = {"use ": "own-tools-job", "document: ": "documents-job"}  # by the beginning of an order, in lower case
_SUBAGENTS: Mapping[str, Rule] = offered("subagents") or {}


class OfflineModel(BaseChatModel):
    """A rule-based chat model without a network.

    It does a category's job by ordinary tool calls. A fire summarizes if its category may propose summaries, does a
    research sweep if it may read the web, and tidies memory if it may forget; any other turn is answered. The ids of
    messages and calls are derived from the turn and the step, so that a replay is equal. Token counts are estimates,
    four characters each.

    Attributes:
        clock: waits for `delay_s`; not used otherwise.
        delay_s: the duration of each answer, for demonstrations and for tests in the middle of a turn.
        entropy: throws the die for loops.
    """

    clock: Any
    delay_s: float = 0.0
    entropy: Any = Field(default_factory=SystemEntropy)

    @property
    def _llm_type(self) -> str:
        return NAME

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        del tool_choice  # the rules choose their own calls
        return self.bind(names=[_name_of(tool) for tool in tools], **kwargs)

    def _generate(self, messages: list[BaseMessage], *_args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages, **kwargs))])

    async def _agenerate(self, messages: list[BaseMessage], *_args: Any, **kwargs: Any) -> ChatResult:
        if self.delay_s > 0:
            clock: Clock = self.clock
            await clock.sleep(self.delay_s)
        return self._generate(messages, **kwargs)

    async def _astream(
        self, messages: list[BaseMessage], *_args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        """Stream the same answer piece by piece, at the speed of a fast reader, while a reader follows the turn."""
        parts = pieces(self._answer(messages, **kwargs))
        clock: Clock = self.clock
        for part in parts:
            await clock.sleep(max(self.delay_s / len(parts), PIECE_S if part.message.text else 0.0))
            yield part

    def _answer(
        self,
        messages: list[BaseMessage],
        turn: TurnContext | None = None,
        names: Sequence[str] = (),
        role: str = "",
        **_unused: Any,
    ) -> AIMessage:
        entropy: Entropy = self.entropy
        window = _this_turn(messages)
        brief = replace(_brief(window, turn, frozenset(names)), draw=min(6, 1 + int(entropy.uniform(0.0, 6.0))))
        fires = brief.by_fire and not give_up(brief, ())
        fitting = (job for scope, job in _JOBS if fires and scope in brief.scopes)
        ordered = (offered(job, brief) for order, job in _ORDERS.items() if order in brief.prompt.lower())
        own = _SUBAGENTS.get(role) or next(filter(None, ordered), None)
        rule = own or next(fitting, reply)
        step = rule(brief, _exchanges(window))
        number = sum(isinstance(message, AIMessage) for message in window)
        said = _message(step, _stem(window, None if role else turn), number)
        taken, given = sum(_tokens(message) for message in messages), _tokens(said)
        said.usage_metadata = UsageMetadata(input_tokens=taken, output_tokens=given, total_tokens=taken + given)
        return said


def _this_turn(messages: list[BaseMessage]) -> list[BaseMessage]:
    starts = [index for index, message in enumerate(messages) if isinstance(message, HumanMessage)]
    return messages[starts[-1] :] if starts else list(messages)


def _brief(window: list[BaseMessage], turn: TurnContext | None, offered: frozenset[str]) -> Brief:
    prompt = window[0].text if window and isinstance(window[0], HumanMessage) else ""
    if turn is None:
        return Brief(prompt=prompt, offered=offered)
    said = prompt or turn.prompt
    return Brief(
        prompt=_WRAPPER.sub("", said) if turn.by_agent else said,
        channel=turn.channel,
        scopes=turn.category.tools,
        memory=turn.category.memory,
        subagents=turn.category.subagents,
        offered=offered,
        by_fire=turn.started_by == "fire" and not turn.by_agent,
        nominal=_minute(turn.nominal_at) if turn.nominal_at else "",
        stands_for=turn.stands_for,
        task=turn.task_name,
    )


def _minute(at: datetime) -> str:
    """Return an instant in UTC to the minute, or to the second if it has seconds."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}".removesuffix(":00") + " UTC"


def _exchanges(window: list[BaseMessage]) -> Done:
    results = {message.tool_call_id: message for message in window if isinstance(message, ToolMessage)}
    calls = [call for message in window if isinstance(message, AIMessage) for call in message.tool_calls]
    return [
        Exchange(tool=call["name"], args=call["args"], ok=result.status != "error", text=result.text)
        for call in calls
        if (result := results.get(call["id"] or ""))
    ]


def _message(step: Step, stem: str, number: int) -> AIMessage:
    calls = [
        ToolCall(name=call.tool, args=call.args, id=f"call-{stem}-{number}-{index}", type="tool_call")
        for index, call in enumerate(step.calls)
    ]
    metadata = {"model_name": NAME, "model_provider": NAME}
    return AIMessage(content=step.text, tool_calls=calls, id=f"said-{stem}-{number}", response_metadata=metadata)


def _stem(window: list[BaseMessage], turn: TurnContext | None) -> str:
    start = turn.turn_id if turn else (window[0].id or window[0].text) if window else ""
    return sha256(start.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _tokens(message: BaseMessage) -> int:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    size = len(message.text) + sum(len(call["name"]) + len(str(call["args"])) for call in calls)
    return -(-size // CHARS_PER_TOKEN)


def _name_of(tool: dict[str, Any] | type | Callable[..., Any] | BaseTool) -> str:
    return tool.name if isinstance(tool, BaseTool) else str(convert_to_openai_tool(tool)["function"]["name"])


def pieces(said: AIMessage) -> list[ChatGenerationChunk]:
    """Return the answer cut at words, with calls and token counts in the last piece; together they equal the answer."""
    texts = cut(str(said.text))
    last = len(texts) - 1
    return [
        ChatGenerationChunk(
            message=AIMessageChunk(
                content=text,
                id=said.id,
                tool_call_chunks=_calls(said) if at == last else [],
                usage_metadata=said.usage_metadata if at == last else None,
                response_metadata=said.response_metadata if at == last else {},
                chunk_position="last" if at == last else None,
            )
        )
        for at, text in enumerate(texts)
    ]


def cut(text: str) -> Sequence[str]:
    """Return the text cut at words, in a limited number of pieces.

    >>> cut("one two  three"), cut("")
    (['one ', 'two  ', 'three'], [''])
    """
    words = _WORDS.findall(text) or [""]
    many = -(-len(words) // MOST_PIECES)
    return ["".join(words[at : at + many]) for at in range(0, len(words), many)]


def _calls(said: AIMessage) -> list[ToolCallChunk]:
    return [
        tool_call_chunk(name=call["name"], args=canonical(call["args"]), id=call["id"], index=at)
        for at, call in enumerate(said.tool_calls)
    ]
