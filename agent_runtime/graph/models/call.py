"""Model calls: checked against the daily token budget, retried if that may help, and examined before use.

Only this layer retries. The layer waits on the runtime's clock, so that a cancellation, a drain and the category's time
limit interrupt it at once. It also logs each try, its fault and its wait. Errors leave this layer in Turnkeeper's own
words, without keys, because a provider's error would be stored in the checkpoint.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import langchain
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langgraph.errors import GraphBubbleUp
from packaging.version import Version

from agent_runtime.graph.context import ToolSpec
from agent_runtime.graph.models import answers
from agent_runtime.graph.models.make import chosen, place_of, redact, secrets_of, shown_url
from agent_runtime.graph.offline.model import NAME as OFFLINE
from agent_runtime.model.turn import TurnContext, used_by
from agent_runtime.store.turn_store import Store
from agent_runtime.store.turn_writes import tokens_of_day
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.settings import ModelSettings
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Exhausted, machine_trouble
from turnkeeper.times import rfc3339

# This layer answers a call that cannot run. Before LangChain 1.4, `create_agent` leads from an answered call back to
# the model only if some middleware has an `after_model` hook.
_LEADS_BACK_ONLY_BEHIND_A_HOOK = Version(langchain.__version__) < Version("1.4")


class TokenBudget:
    """The daily limit on tokens of all turns together, in UTC days, from the turn table.

    Each turn's row contains the tokens of its last counted day, so the sum is exact across restarts, across midnight,
    and for a turn that is resumed days later. The sum is read before each model call; concurrent calls may together
    exceed the budget by their own tokens.
    """

    def __init__(self, cap: int, store: Store, clock: Clock) -> None:
        self._cap = cap
        self._store = store
        self._clock = clock

    async def check(self) -> None:
        """Raise Exhausted if the day's tokens are used up."""
        if not self._cap:
            return
        now = self._clock.now()
        used = await self._store.read(lambda connection: tokens_of_day(connection, now))
        if used >= self._cap:
            raise Exhausted(
                f"daily token cap of {self._cap:,} reached",
                hint=f"resets at {rfc3339(next_day(now))}; raise [model] daily_token_cap and restart agent-runtime",
            )


def next_day(now: datetime) -> datetime:
    """Return the start of the next day in UTC.

    >>> rfc3339(next_day(datetime(2026, 12, 31, 23, 59, tzinfo=UTC)))
    '2027-01-01T00:00:00Z'
    """
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


Request = ModelRequest[TurnContext]
Response = ModelResponse[Any]
Handler = Callable[[Request], Awaitable[Response]]
_GENERAL = "check whether its server runs and answers; the next fire or message tries again"


@dataclass(frozen=True, kw_only=True)
class CallEnvironment:
    """The environment of model calls.

    Attributes:
        clock: waits between tries.
        secrets: texts that no error may show.
    """

    cap: TokenBudget
    clock: Clock
    entropy: Entropy
    log: EventLog
    secrets: frozenset[str]


def model_calls(
    settings: ModelSettings, specs: Sequence[ToolSpec], around: CallEnvironment
) -> list[AgentMiddleware[Any, Any, Any]]:
    """Return the middleware for all models except the offline one, which cannot fail.

    The middleware must be last in an agent's list, next to the model, so that the others see one call and one answer.
    """
    return [Calls(settings, frozenset(spec.tool.name for spec in specs), around)]


@dataclass(kw_only=True)
class _Try:
    """One try of a call."""

    number: int
    began: float
    pieces: answers.Pieces
    model: ModelSettings
    place: str


class Calls(AgentMiddleware[AgentState[Any], TurnContext, Any]):
    """See :func:`model_calls`."""

    def __init__(self, settings: ModelSettings, tools: frozenset[str], around: CallEnvironment) -> None:
        super().__init__()
        self._settings = settings
        self._tools = tools
        self._around = around

    if _LEADS_BACK_ONLY_BEHIND_A_HOOK:

        async def aafter_model(self, state: AgentState[Any], runtime: Any) -> None:
            """Do nothing; the hook makes LangChain add the edge from an answered call back to the model."""

    async def awrap_model_call(self, request: Request, handler: Handler) -> Response:
        """Call the model until it gives a usable answer.

        Raises:
            ModelFailed: the model gave no usable answer.
            Exhausted: the day's tokens are used up.
            MachineTrouble: this machine failed, not the model's server.
        """
        context = request.runtime.context if request.runtime else None
        turn = context if isinstance(context, TurnContext) else None
        named = (turn.config_json, turn.category.model) if turn else ()
        used = chosen(self._settings, *named) if any(named) else self._settings
        if used.name == OFFLINE:
            return await handler(request)
        turn_id = turn.turn_id if turn else ""
        place = place_of(turn) if turn and used.name != self._settings.name else "[model] in config.toml"
        lost, number = (0, 0), 0
        while True:
            number += 1
            await self._around.cap.check()
            began, pieces = self._around.clock.monotonic(), answers.Pieces()
            this = _Try(number=number, began=began, pieces=pieces, model=used, place=place)
            try:
                response = await handler(
                    request.override(model=request.model.model_copy(update={"callbacks": [this.pieces]}))
                )
                return self._answered(request, response, this, lost, turn_id)
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001  classified, logged, and raised again in our own words
                lost = (lost[0] + this.pieces.tokens[0], lost[1] + this.pieces.tokens[1])
                wait_s = self._after(error, this, lost, turn_id, secrets_of(request.model))
            await self._around.clock.sleep(wait_s)

    def _answered(
        self, request: Request, response: Response, this: _Try, lost: tuple[int, int], turn_id: str
    ) -> Response:
        answer = response.result[0]
        if not isinstance(answer, AIMessage):
            raise TypeError(f"expected an answer (AIMessage), got {type(answer).__name__}")
        offered = {tool.name if not isinstance(tool, dict) else str(tool.get("name")) for tool in request.tools}
        first, *refused = answers.examine(answer, this.pieces.all, self._tools | offered)
        assert isinstance(first, AIMessage)
        asked = [request.system_message, *request.messages] if request.system_message else request.messages
        said, estimated = answers.with_usage(first, asked, request.tools, lost, this.model.name)
        usage: Any = said.usage_metadata
        self._around.log.emit(
            "model.answered",
            turn_id=turn_id,
            attempt=this.number,
            model=this.model.name,
            tokens_in=usage["input_tokens"],
            tokens_out=usage["output_tokens"],
            estimated=estimated,
            ending=answers.ending_of(said),
            took_s=round(self._around.clock.monotonic() - this.began, 3),
        )
        return ModelResponse(result=[said, *refused], structured_response=response.structured_response)

    def _after(self, error: Exception, this: _Try, lost: tuple[int, int], turn_id: str, held: frozenset[str]) -> float:
        """Return how many seconds to wait before the next try, or raise the turn's error."""
        secrets = self._around.secrets | held
        fault = answers.read_fault(error, self._around.clock.now(), secrets)
        wait_s = answers.wait_before(this.number, fault, self._around.entropy.uniform(0.0, 1.0))
        log = self._around.log
        if wait_s is not None:
            waits = round(wait_s, 3)
            log.emit("model.retry", turn_id=turn_id, attempt=this.number, reason=fault.reason, wait_s=waits)
            return wait_s
        log.emit("model.failed", turn_id=turn_id, attempt=this.number, reason=fault.reason)
        if (trouble := machine_trouble(error, "a model's call")) is not None:
            raise trouble from None
        failed = _failed(fault, this, secrets)
        failed.used = used_by(this.model.name, *lost)
        raise failed from None  # the provider's error may quote a key


def _failed(fault: answers.Fault, last: _Try, secrets: frozenset[str]) -> answers.ModelFailed:
    what = f"{fault.what}; it was tried {last.number} times" if last.number > 1 else fault.what
    base_url = last.model.base_url
    at = shown_url(base_url) if base_url else "its provider's own address"
    where = f"model {last.model.name} at {at}"
    hint = f"{fault.hint}: {last.place}" if fault.hint == answers.CHECK else fault.hint or _GENERAL
    return answers.ModelFailed(redact(what, secrets), where=redact(where, secrets), hint=hint)
