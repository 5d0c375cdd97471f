#!/usr/bin/env bash
# All that is worth knowing on a machine with a card, in a few minutes: what its instructions compute, the tests, the given cases, the figures.
# Writes one folder with the log, each step's output and the figures; a step that fails stops no other, and makes the exit status 1.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
    cat <<'TEXT'
usage: bench/on_gpu.sh [--no-install] [--dry-run] [--cases FOLDER] [--out FOLDER]

  --no-install    use what is installed
  --dry-run       say what would run, and run nothing; writes the log only where --out says
  --cases FOLDER  also run FOLDER/run.py, which takes --backend, --arrays and --api, on CuPy arrays
  --out FOLDER    where to write (default: a new folder bench/results/gpu-CARD-DATE)

PYTHON names the interpreter (default: python3).
TEXT
}

install=1
dry=0
cases=""
out=""
while [ $# -gt 0 ]; do
    case $1 in
        --no-install) install=0 ;;
        --dry-run) dry=1 ;;
        --cases | --out)
            [ $# -ge 2 ] || { echo "$1 needs a folder" >&2; exit 2; }
            if [ "$1" = --cases ]; then cases=$2; else out=$2; fi
            shift
            ;;
        -h | --help) usage; exit 0 ;;
        *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
    esac
    shift
done

python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "there is no $python: set PYTHON" >&2; exit 2; }
date=$(date -u +%Y-%m-%dT%H%M%SZ)

smi() { # the first card's answer
    nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1
}
card=$(smi name)
out_given=1
if [ -z "$out" ]; then
    out_given=0
    slug=$(printf '%s' "${card:-no-card}" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' '-' | sed 's/^-*//; s/-*$//')
    out=bench/results/gpu-$slug-$date
fi
if [ "$dry" = 1 ] && [ "$out_given" = 0 ]; then
    log=/dev/null
else
    mkdir -p "$out" || exit 2
    out=$(cd "$out" && pwd)
    log=$out/log.txt
    : >"$log"
fi
status=0

say() { printf '%s\n' "$*" | tee -a "$log"; }

run() { # name, seconds it may take, command: its output goes to name.txt, its status to the log
    local name=$1 limit=$2 begin=$SECONDS code
    shift 2
    if [ "$dry" = 1 ]; then
        say "$name: would run, for at most $limit s: $*"
        return
    fi
    echo "== $name: $*"
    timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$out/$name.txt"
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || status=1
    say "$name: status $code after $((SECONDS - begin)) s: $*"
}

version_of() { "$python" -c "$1" 2>/dev/null || echo unknown; }

describe() {
    say "date: $date"
    say "commit: $(git rev-parse HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ' with changes')"
    say "card: ${card:-none found by nvidia-smi}"
    say "driver: $(smi driver_version)"
    say "clocks, graphics and memory, at most: $(smi clocks.max.graphics), $(smi clocks.max.memory)"
    say "Python: $("$python" --version 2>&1)"
}

describe_installed() {
    say "CuPy: $(version_of 'import cupy; print(cupy.__version__)')"
    say "NVRTC: $(version_of 'import cupy; print(*cupy.cuda.nvrtc.getVersion(), sep=".")')"
    say "torch: $(version_of 'import importlib.metadata; print(importlib.metadata.version("torch"))')"
    say "backend: $(version_of 'import dualsoft; print(dualsoft.backends()["cuda"] or "cuda can be used")')"
}

describe
if [ "$install" = 1 ]; then
    # A second wheel of CuPy beside another would break both.
    extra=test-cuda
    if "$python" -c 'import cupy' 2>/dev/null; then extra="test"; fi
    run install 600 "$python" -m pip install -e ".[$extra]"
fi
describe_installed
run conformance 60 "$python" tests/gpu_conformance.py
# Tests whose parameter is the backend "cuda"; those of the emulator and of this benchmark need no card.
run matrix 600 env DUALSOFT_TEST_REQUIRE=cuda "$python" -m pytest -q tests \
    -k "cuda and not emulated and not test_cuda and not test_bench and not test_layering"
if [ -n "$cases" ]; then
    run cases 240 "$python" "$cases/run.py" --backend cuda --arrays cupy \
        --api softmax,log_softmax,logsumexp,cumulative_logsumexp,attention,decode,merge
fi
run bench 420 "$python" -m bench --backend cuda softmax log_softmax logsumexp cumulative_logsumexp --json "$out/bench.json"
run attention 420 "$python" -m bench --backend cuda attention attention_backward decode paged --json "$out/attention.json"
if [ "$dry" = 1 ]; then
    say "nothing has run"
elif [ "$status" = 0 ]; then
    say "all steps passed"
else
    say "some steps failed, see above"
fi
echo "the folder: $out"
exit "$status"
