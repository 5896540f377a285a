#!/usr/bin/env bash
# Runs the Python tests with several releases of ONNX Runtime, CPU and GPU distributions, on one build of ours.
#
#   tools/test_releases.sh [DISTRIBUTION==VERSION | DISTRIBUTION]... [-- PYTEST_OPTION...]
#
# Each is unpacked into build/releases and put first on PYTHONPATH; without a version it is the newest one. On a machine
# without a GPU the GPU distributions run the CPU's tests. The table of results comes last; exit status 1 for any
# failure. PY is the interpreter that has ortmulti and its tests' requirements (by default python3).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PY:-python3}
root=$PWD/build/releases

releases=()
while [[ $# -gt 0 && $1 != -- ]]; do
  releases+=("$1")
  shift
done
[[ ${1:-} == -- ]] && shift
if [[ ${#releases[@]} -eq 0 ]]; then
  for distribution in onnxruntime onnxruntime-gpu; do
    for version in ==1.21.1 ==1.23.2 ==1.30.0 ""; do
      releases+=("$distribution$version")
    done
  done
fi

# Unpacks release $1 and prints its folder. Only what belongs to it: numpy and the like stay those of the environment.
unpack() {
  local release=$1
  [[ $release == *==* ]] || release=$release==$(newest "$release")
  "$python" -m tools.unpack_release "$release"
}

newest() {
  "$python" -m pip install -q --no-deps --dry-run --ignore-installed --report - "$1" 2>/dev/null |
    "$python" -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])'
}

mkdir -p "$root"
table=() status=0
for release in "${releases[@]}"; do
  echo "== $release"
  result="not installed"
  if dir=$(unpack "$release"); then
    release=$(basename "$dir")
    log=$root/$release.log
    if env -u ORTMULTI_ONNXRUNTIME_LIBRARY PYTHONPATH="$dir${PYTHONPATH:+:$PYTHONPATH}" \
      "$python" -m pytest -q -p no:cacheprovider -m "not slow" "$@" 2>&1 | tee "$log"; then
      verdict=passed
    else
      verdict=FAILED
    fi
    result="$verdict: $(grep -E '[0-9]+ (passed|failed|error|skipped)' "$log" | tail -n 1 | tr -d '=' || echo "no result")"
  else
    verdict=FAILED
  fi
  [[ $verdict == passed ]] || status=1
  table+=("$(printf '%-28s %s' "$release" "$result")")
done
echo
printf '%s\n' "${table[@]}"
exit $status
