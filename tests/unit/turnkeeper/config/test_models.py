"""Names of models: one judgement for commands and the runtime, and no package that is not in the table."""

import pytest
from langchain.chat_models import base

from turnkeeper.config.models import PROVIDERS, full_name, package_of
from turnkeeper.errors import InvalidInput

SERVER = "http://127.0.0.1:8000/v1"


def test_the_table_has_each_provider_of_langchain_with_its_package() -> None:
    theirs = {name: made[0].partition(".")[0].replace("_", "-") for name, made in base._BUILTIN_PROVIDERS.items()}
    assert {name: PROVIDERS[name][0] for name in theirs} == theirs


@pytest.mark.parametrize(
    ("name", "url", "full"),
    [
        ("offline", "", "offline"),
        ("openai:gpt-5", "", "openai:gpt-5"),
        ("gpt-5", "", "openai:gpt-5"),
        ("claude-sonnet-4-5", "", "anthropic:claude-sonnet-4-5"),
        ("claude-sonnet-4-5", SERVER, "openai:claude-sonnet-4-5"),
        ("llama3", SERVER, "openai:llama3"),
        ("llama3:8b", SERVER, "openai:llama3:8b"),
        ("mistral:7b", SERVER, "openai:mistral:7b"),
        ("ollama:llama3", SERVER, "ollama:llama3"),
    ],
)
def test_a_name_has_one_meaning(name: str, url: str, full: str) -> None:
    assert full_name(name, url) == full
    assert full == "offline" or package_of(full)


@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        ("opnai:gpt-5", "", "no provider 'opnai'; did you mean openai:gpt-5?"),
        ("opnai:gpt-5", SERVER, "no provider 'opnai'; did you mean openai:gpt-5?"),
        ("OpenAI:gpt-5", "", "did you mean openai:gpt-5?"),
        ("google-genai:gemini-3", "", "did you mean google_genai:gemini-3?"),
        ("offlin", "", "did you mean offline?"),
        ("llama3", "", "does not say its provider; .*--base-url URL"),
        ("nosuch:model", "", "no provider 'nosuch'; .*openai:gpt-5"),
        ("openai", SERVER, "openai is a provider, without a model"),
        ("two words", "", "is not the name of a model"),
    ],
)
def test_a_name_without_a_meaning_says_what_may_be_meant(name: str, url: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        full_name(name, url)
