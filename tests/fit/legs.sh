#!/usr/bin/env bash
# Runs the suite's core on other versions: the lowest ones, beside langgraph-cli[inmem], and on other Pythons.
# Each leg has an environment of its own, .venv-LEG, which uv makes (.venv/bin/uv, or $UV).
# With --short, a leg runs one test of a fire, of an approval and of kill -9, and the approval on PostgreSQL. Its environment,
# .venv-LEG-short, has the packages alone that these tests need.
# Usage: tests/fit/legs.sh [--short] [lowest] [beside] [3.12] [3.13]
set -euo pipefail
cd "$(dirname "$0")/../.."
UV=${UV:-.venv/bin/uv}
export UV_PYTHON_DOWNLOADS=never

JOB=(tests/acceptance/test_fire_to_conversation.py tests/acceptance/test_approvals.py tests/acceptance/test_crashes.py)
CORE=("${JOB[@]}" tests/acceptance/test_catch_up.py tests/acceptance/test_upgrades.py tests/integration/runner)
APPROVAL=tests/acceptance/test_approvals.py::test_an_approval_survives_kill_9_and_is_used_once
FIRE=tests/acceptance/test_fire_to_conversation.py::test_a_fire_becomes_a_marked_turn_and_the_author_continues_on_its_thread
KILL=tests/acceptance/test_crashes.py::test_both_die_in_the_middle_of_a_turn

short=
if [ "${1-}" = --short ]; then
  short=-short
  shift
fi

interpreter() { # prints the path of a Python of version $1; fails if there is none
  if "python$1" -c "" 2>/dev/null; then
    command -v "python$1"
    return
  fi
  ls "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/"python$1" 2>/dev/null | tail -1 | grep .
}

environment() { # makes the folder $1 with the interpreter $2 and the packages of the lock $3; in a short run, with those that
  local folder=$1 lock=$3 # the package, its tests and $4… need, in the versions of the lock
  if [ "$folder/.ready" -nt "$lock" ] && [ "$folder/.ready" -nt pyproject.toml ]; then return; fi
  rm -rf "$folder"
  "$UV" venv --quiet --no-project --python "$2" "$folder"
  local install=("$UV" pip install --quiet --no-config --python "$folder/bin/python")
  shift 3
  if [ -n "$short" ]; then
    "${install[@]}" --constraints "$lock" -r pyproject.toml --extra postgres --extra web -r tests/fit/short.in "$@"
  else
    "${install[@]}" --no-deps --require-hashes -r "$lock"
  fi
  "${install[@]}" --no-deps -e .
  touch "$folder/.ready"
}

leg() { # runs the tests $4… on SQLite, and the main job on PostgreSQL, with the interpreter $2 and the lock $3
  local name=$1 python=$2 lock=$3 beside=() folder=.venv-$1$short
  shift 3
  case $name in beside) beside=("langgraph-cli[inmem]") ;; esac
  environment "$folder" "$python" "$lock" "${beside[@]}"
  echo "leg $name: $("$folder/bin/python" --version)"
  # shellcheck disable=SC2206 # PYTEST_ARGS has several words
  local test=("$folder/bin/python" -m pytest -q --no-loadscope-reorder) more=(${PYTEST_ARGS-})
  if [ -n "$short" ]; then
    "${test[@]}" -n 3 "$FIRE" "$APPROVAL" "$KILL" "${more[@]}"
    "${test[@]}" -n 0 --database postgres "$APPROVAL" "${more[@]}"
  else
    "${test[@]}" -n 6 "$@" "${more[@]}"
    "${test[@]}" -n 3 --database postgres "${JOB[@]}" "${more[@]}"
  fi
}

for name in "${@:-lowest beside 3.12 3.13}"; do
  for one in $name; do
    case $one in
    lowest)
      lock=tests/fit/lowest.lock
      if [ -n "$short" ]; then lock=tests/fit/bare.lock; fi
      leg lowest "${PYTHON:-python3}" $lock "${CORE[@]}" tests/integration/runtime
      ;;
    beside) leg beside "${PYTHON:-python3}" tests/fit/beside.lock "${JOB[@]}" ;;
    *)
      if python=$(interpreter "$one"); then
        leg "$one" "$python" requirements.lock "${CORE[@]}"
      else
        echo "leg $one: skipped, no Python $one is installed"
      fi
      ;;
    esac
  done
done
