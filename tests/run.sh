#!/usr/bin/env bash
# Sets up .venv, lints and tests, in that order; stops at the first step that fails.
#
#   bash tests/run.sh                  # everything
#   bash tests/run.sh -k checkpoint    # arguments go to pytest, which then runs once with only them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash requirements/setup.sh --for test
export PATH="$PWD/.venv/bin:$PATH"
# Two test processes share the cores, tests reach no hub, and tokenizers fork no threads.
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

step() {
  local name=$1 began=$SECONDS
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  "$@"
  if [[ $name != "unit tests" && $name != "slow tests" && $name != tests ]]; then
    printf '   %s took %d s\n' "$name" $((SECONDS - began))
  fi
}

step lint ruff check .
step format ruff format --check .
step types mypy lightrft
step layers lint-imports

if (($#)); then
  step tests pytest "$@"
  exit
fi
step "unit tests" pytest -m "not slow and not gpu" -n 2
# Without a GPU, its tests are collected and skipped, so that the summary counts them.
step "slow tests" pytest -m "slow or gpu"
