#!/usr/bin/env bash
# Downloads the integration suite of LangGraph's SDK and what its graphs import, both pinned by hash, into .cache.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
PLACE=.cache/langgraph-suite
[ "$PLACE/.ready" -nt tests/langgraph_suite/sdist.txt ] && [ "$PLACE/.ready" -nt tests/langgraph_suite/graphs.txt ] && exit 0
rm -rf "$PLACE" && mkdir -p "$PLACE/sdist"
pip=("$PYTHON" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" download --no-deps --no-binary :all: --no-build-isolation --require-hashes --dest "$PLACE" -r tests/langgraph_suite/sdist.txt
tar -xzf "$PLACE"/langgraph_sdk-*.tar.gz -C "$PLACE/sdist" --strip-components 1
# The project's folder is on the path of its graphs.
"${pip[@]}" install --no-deps --require-hashes --target "$PLACE/sdist/integration" -r tests/langgraph_suite/graphs.txt
touch "$PLACE/.ready"
