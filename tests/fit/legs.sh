#!/usr/bin/env bash
# Runs the suite's core on other versions: the lowest ones, beside langgraph-cli[inmem], and on other Pythons.
# Each leg has an environment of its own, .venv-LEG. Usage: tests/fit/legs.sh [lowest] [beside] [3.12] [3.13]
set -euo pipefail
cd "$(dirname "$0")/../.."

JOB=(tests/acceptance/test_fire_to_conversation.py tests/acceptance/test_approvals.py tests/acceptance/test_crashes.py)
CORE=("${JOB[@]}" tests/acceptance/test_catch_up.py tests/acceptance/test_upgrades.py tests/integration/runner)

interpreter() { # prints the path of a Python of version $1; fails if there is none
  if "python$1" -c "" 2>/dev/null; then
    command -v "python$1"
    return
  fi
  ls "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/"python$1" 2>/dev/null | tail -1 | grep .
}

environment() { # makes .venv-$1 with the interpreter $2 and the packages of the lock $3
  local folder=".venv-$1"
  if [ "$folder/.ready" -nt "$3" ] && [ "$folder/.ready" -nt pyproject.toml ]; then return; fi
  rm -rf "$folder"
  "$2" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$3"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -e .
  touch "$folder/.ready"
}

leg() { # runs the tests $3… on SQLite, and the main job on PostgreSQL, in the environment of the leg $1 with the lock $2
  local name=$1 lock=$2 python
  shift 2
  case $name in 3.*) python=$(interpreter "$name") ;; *) python=${PYTHON:-python3} ;; esac || {
    echo "leg $name: skipped, no Python $name is installed"
    return
  }
  environment "$name" "$python" "$lock"
  echo "leg $name: $(".venv-$name/bin/python" --version)"
  ".venv-$name/bin/python" -m pytest -q -n 6 --no-loadscope-reorder "$@"
  ".venv-$name/bin/python" -m pytest -q -n 3 --database postgres "${JOB[@]}"
}

for name in "${@:-lowest beside 3.12 3.13}"; do
  for one in $name; do
    case $one in
    lowest) leg lowest tests/fit/lowest.lock "${CORE[@]}" tests/integration/runtime ;;
    beside) leg beside tests/fit/beside.lock "${JOB[@]}" ;;
    *) leg "$one" requirements.lock "${CORE[@]}" ;;
    esac
  done
done
