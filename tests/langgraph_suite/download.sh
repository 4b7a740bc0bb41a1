#!/usr/bin/env bash
# Downloads the test suites of LangGraph's SDK and of aegra, and what they import, all pinned by hash, into .cache.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
pip=("$PYTHON" -m pip --quiet --disable-pip-version-check)

# suite PLACE SDIST PACKAGES FOLDER: unpack a source distribution, and install packages into a folder of it.
suite() {
    [ "$1/.ready" -nt "$2" ] && [ "$1/.ready" -nt "$3" ] && return
    rm -rf "$1" && mkdir -p "$1/sdist"
    "${pip[@]}" download --no-deps --no-binary :all: --no-build-isolation --require-hashes --dest "$1" -r "$2"
    tar -xzf "$1"/*.tar.gz -C "$1/sdist" --strip-components 1
    "${pip[@]}" install --no-deps --require-hashes --target "$1/sdist/$4" -r "$3"
    touch "$1/.ready"
}

# The project's folder is on the path of its graphs.
suite .cache/langgraph-suite tests/langgraph_suite/sdist.txt tests/langgraph_suite/graphs.txt integration
suite .cache/aegra-suite tests/langgraph_suite/aegra/sdist.txt tests/langgraph_suite/aegra/packages.txt packages
