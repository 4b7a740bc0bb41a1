"""The examples in docstrings hold."""

import doctest

import pytest

import turnkeeper.config.toml_file
import turnkeeper.console.unseen
import turnkeeper.times


@pytest.mark.parametrize(
    "module", [turnkeeper.times, turnkeeper.config.toml_file, turnkeeper.console.unseen], ids=lambda m: m.__name__
)
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted
    assert not results.failed
