"""Names of models: the check of a name, the provider in the name, and the provider's package and key.

Commands and the runtime check a name only with :func:`full_name`.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from turnkeeper.errors import InvalidInput

OFFLINE = "offline"
OPENAI = "openai"
# By provider, under the names of LangChain's `init_chat_model`: the package, and the variable with the key. The
# variable is empty if the provider takes no key or several keys.
PROVIDERS: Mapping[str, tuple[str, str]] = {
    "anthropic": ("langchain-anthropic", "ANTHROPIC_API_KEY"),
    "anthropic_bedrock": ("langchain-aws", ""),
    "azure_ai": ("langchain-azure-ai", ""),
    "azure_openai": ("langchain-openai", "AZURE_OPENAI_API_KEY"),
    "baseten": ("langchain-baseten", "BASETEN_API_KEY"),
    "bedrock": ("langchain-aws", ""),
    "bedrock_converse": ("langchain-aws", ""),
    "bedrock_mantle_anthropic": ("langchain-aws", ""),
    "bedrock_mantle_openai": ("langchain-aws", ""),
    "cohere": ("langchain-cohere", "COHERE_API_KEY"),
    "deepseek": ("langchain-deepseek", "DEEPSEEK_API_KEY"),
    "fireworks": ("langchain-fireworks", "FIREWORKS_API_KEY"),
    "google_anthropic_vertex": ("langchain-google-vertexai", ""),
    "google_genai": ("langchain-google-genai", "GOOGLE_API_KEY"),
    "google_vertexai": ("langchain-google-vertexai", ""),
    "groq": ("langchain-groq", "GROQ_API_KEY"),
    "huggingface": ("langchain-huggingface", "HUGGINGFACEHUB_API_TOKEN"),
    "ibm": ("langchain-ibm", "WATSONX_APIKEY"),
    "langsmith": ("langchain-openai", "LANGSMITH_API_KEY"),
    "litellm": ("langchain-litellm", ""),
    "meta": ("langchain-meta", ""),
    "mistralai": ("langchain-mistralai", "MISTRAL_API_KEY"),
    "nvidia": ("langchain-nvidia-ai-endpoints", "NVIDIA_API_KEY"),
    "ollama": ("langchain-ollama", ""),
    "openai": ("langchain-openai", "OPENAI_API_KEY"),
    "openrouter": ("langchain-openrouter", "OPENROUTER_API_KEY"),
    "perplexity": ("langchain-perplexity", "PPLX_API_KEY"),
    "together": ("langchain-together", "TOGETHER_API_KEY"),
    "upstage": ("langchain-upstage", "UPSTAGE_API_KEY"),
    "xai": ("langchain-xai", "XAI_API_KEY"),
}
EXTRAS = frozenset({"openai", "anthropic"})  # extras of our package, which install a provider in the right version
# Prefixes of names that identify the provider, from LangChain.
_FAMILIES = {
    **dict.fromkeys(("gpt-", "o1", "o3", "chatgpt", "text-davinci"), OPENAI),
    "claude": "anthropic",
    "command": "cohere",
    "accounts/fireworks": "fireworks",
    "gemini": "google_genai",
    **dict.fromkeys(("amazon.", "anthropic.", "meta."), "bedrock"),
    "mistral": "mistralai",
    "mixtral": "mistralai",
    "deepseek": "deepseek",
    "grok": "xai",
    "sonar": "perplexity",
    "solar": "upstage",
}
_WORD = re.compile(r"[!-~]{1,200}")
_FORMS = "write offline, or PROVIDER:NAME such as openai:gpt-5"


def full_name(text: str, base_url: str = "") -> str:
    """Return a model's name with its provider. With a server's address, a name without a provider is OpenAI's.

    >>> full_name("gpt-5"), full_name("llama3:8b", "http://localhost:8000/v1"), full_name("offline")
    ('openai:gpt-5', 'openai:llama3:8b', 'offline')

    Raises:
        InvalidInput: the name is malformed or its provider is unknown. The error suggests similar names.
    """
    if not _WORD.fullmatch(text):
        raise InvalidInput("is not the name of a model", where="model", hint=_FORMS)
    provider, colon, name = text.partition(":")
    if text == OFFLINE or (provider in PROVIDERS and name):
        return text
    if text.rstrip(":") in PROVIDERS:
        raise InvalidInput(f"{provider} is a provider, without a model", where="model", hint=_FORMS)
    family = _family(text)
    # The names of a server's models may contain colons and begin like the name of a provider, such as mistral:7b.
    typed_as = (OPENAI, "anthropic") if base_url else PROVIDERS if colon else (OFFLINE,)
    close = get_close_matches(provider.lower(), typed_as, n=1, cutoff=0.8)
    if close and (colon or not base_url):
        server = "" if base_url or not colon else " Or give --base-url URL for a server of your own"
        hint = f"did you mean {close[0]}{colon}{name}?{server}"
        raise InvalidInput(f"no {'provider' if colon else 'model'} {provider[:40]!r}", where="model", hint=hint)
    if base_url or family:
        return f"{OPENAI if base_url else family}:{text}"
    what = f"no provider {provider[:40]!r}" if colon else f"{text[:40]!r} does not say its provider"
    raise InvalidInput(what, where="model", hint=f"{_FORMS}; for a server of your own, also give --base-url URL")


def key_name(model: str) -> str:
    """Return the variable with the key for a model's provider. Empty if no variable is known.

    >>> key_name("openai:gpt-5"), key_name("claude-sonnet-4-5"), key_name("ollama:llama3")
    ('OPENAI_API_KEY', 'ANTHROPIC_API_KEY', '')
    """
    provider = model.partition(":")[0]
    return PROVIDERS.get(provider if provider in PROVIDERS else _family(model), ("", ""))[1]


def package_of(model: str) -> str:
    """Return the package, with its extra, that installs the provider of a model."""
    provider = model.partition(":")[0]
    return f"turnkeeper[{provider}]" if provider in EXTRAS else PROVIDERS[provider][0]


def _family(text: str) -> str:
    return next((one for begin, one in _FAMILIES.items() if text.lower().startswith(begin)), "")
