"""A category that is narrowed acts at once; one that is widened acts from the next fire."""

from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import Narrowing
from turnkeeper.errors import InvalidInput, NotFound


class Files:
    """The category as its file says; None: there is none."""

    def __init__(self, *scopes: str) -> None:
        self.now: Category | Exception = wide(*scopes)

    def get(self, _name: str) -> Category:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


def wide(*scopes: str) -> Category:
    return Category(name="work", tools=frozenset(scopes))


def turn(category: Category) -> TurnContext:
    return TurnContext(turn_id="turn-1", thread_id="thread-a", channel="main", agent="agent0", category=category)


def test_it_narrows_at_each_look_and_never_widens_within_a_turn() -> None:
    files = Files("a", "b", "c")
    narrowing = Narrowing(files.get)
    context = turn(narrowing.begin("turn-1", wide("a", "b")))
    assert context.category.tools == {"a", "b"}, "what was not granted at acceptance is not granted now"
    files.now = wide("a")
    assert narrowing(context).category.tools == {"a"}
    files.now = wide("a", "b", "c")
    assert narrowing(context).category.tools == {"a"}
    assert narrowing.end("turn-1").tools == {"a"}, "which is what the turn goes on with"


def test_a_category_that_is_gone_or_unreadable_grants_nothing() -> None:
    for trouble in (NotFound("gone"), InvalidInput("broken")):
        files = Files("a")
        narrowing = Narrowing(files.get)
        context = turn(narrowing.begin("turn-1", wide("a")))
        files.now = trouble
        assert narrowing(context).category.tools == frozenset()


def test_a_subagents_turn_is_narrowed_with_its_parents() -> None:
    files = Files("a", "b")
    narrowing = Narrowing(files.get)
    narrowing.begin("turn-1", wide("a", "b"))
    files.now = wide("b")
    assert narrowing(turn(wide("a"))).category.tools == frozenset()


def test_a_turn_that_does_not_run_is_granted_nothing() -> None:
    narrowing = Narrowing(Files("a").get)
    context = turn(narrowing.begin("turn-1", wide("a")))
    narrowing.end("turn-1")
    assert narrowing(context).category.tools == frozenset()
    assert narrowing(context).category.tools == frozenset(), "and a look does not bring it back"
