"""Picking the sentences that say most. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

from agent_runtime.model.words import sentences, terms, words


def salient(texts: Iterable[str], most: int) -> list[str]:
    """Return the sentences whose words the texts use most often, in the order they stand, each once.

    Source: H. P. Luhn, The Automatic Creation of Literature Abstracts, IBM Journal 2(2), 1958.
    """
    found = list(dict.fromkeys(sentence for text in texts for sentence in sentences(text)))
    weight = Counter(word for sentence in found for word in terms(sentence))

    def value(sentence: str) -> float:
        content = terms(sentence)
        return sum(weight[word] for word in content) / (len(content) + 2)

    return _in_order(found, sorted(found, key=value, reverse=True)[:most])


def relevant(text: str, wanted: Sequence[str], most: int) -> list[str]:
    """Return the sentences that hold most of the wanted words, in the order they stand; none that holds none."""
    found = list(dict.fromkeys(sentences(text)))
    hits = {sentence: len(set(words(sentence)) & set(wanted)) for sentence in found}
    best = [sentence for sentence in sorted(found, key=lambda one: -hits[one]) if hits[sentence]]
    return _in_order(found, best[:most])


def _in_order(found: Sequence[str], chosen: Sequence[str]) -> list[str]:
    return [sentence for sentence in found if sentence in set(chosen)]
