#!/usr/bin/env bash
# Fuzzes under AddressSanitizer and UndefinedBehaviorSanitizer the reader and the rewriter of ONNX models, from the
# tests' models on, and what the server reads of its clients, from tests/fuzz/write_seeds.py on: with libFuzzer where
# there is a Clang that has it (Debian: clang and libclang-rt-dev), else with our own driver and the compiler that there
# is. Then runs the fuzz targets in Python, tests/fuzz/fuzz_*.py; PY is a Python that has ortmulti.
#
#   tools/test_fuzz.sh [SECONDS]
#
# The targets in C++ share SECONDS (60) evenly, and each one in Python has as many. Without the server's headers only
# the target `onnx` is built. CXX names the compiler. The corpus of a target stays in build/fuzz/corpus/TARGET and grows;
# an input that fails is kept in build/fuzz/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}

has_libfuzzer() {
  local program
  program=$(mktemp)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "$1" -x c++ -fsanitize=fuzzer,address - -o "$program" >/dev/null 2>&1
  local result=$?
  rm -f "$program"
  return $result
}

compiler=${CXX:-}
if [[ -z $compiler ]]; then
  for candidate in clang++ $(compgen -c clang++- | sort -Vru | grep -xE 'clang\+\+-[0-9]+' || true) c++; do
    if command -v "$candidate" >/dev/null && { [[ $candidate == c++ ]] || has_libfuzzer "$candidate"; }; then
      compiler=$candidate
      break
    fi
  done
fi
name=$(basename "$compiler")
echo "compiler: $compiler"

: "${ORTMULTI_TEST_MODELS:=build/test-models}"
corpus=build/fuzz/corpus
mkdir -p "$corpus/onnx"
# Large weights only make inputs slow.
find "$ORTMULTI_TEST_MODELS" -maxdepth 1 -name '*.onnx' -size -64k -exec cp {} "$corpus/onnx/" \;
"${PY:-python3}" -m tests.fuzz.write_seeds "$corpus"

build=build/fuzz/$name
cmake -S . -B "$build" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DORTMULTI_BUILD_FUZZERS=ON -DPython_EXECUTABLE="$("${PY:-python3}" -c 'import sys; print(sys.executable)')" \
  >"$build.log"
targets=$(cmake --build "$build" --target help | grep -oE 'ortmulti_fuzz_[a-z0-9_]+' | sort -u)
count=$(wc -w <<<"$targets")
# shellcheck disable=SC2086 # several targets
cmake --build "$build" --target $targets
# Less is kept of each allocation, which takes most of the time: a kept input can be run again without these options.
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=4:malloc_context_size=2:max_malloc_fill_size=64}
for target in $targets; do
  kind=${target#ortmulti_fuzz_}
  length=65536
  [[ $kind == http* ]] && length=400 # a byte stands for a line, or a frame
  "$build/tests/fuzz/$target" -max_total_time=$(((seconds + count - 1) / count)) -max_len=$length -timeout=10 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/$kind-" "$corpus/$kind"
done
for target in tests/fuzz/fuzz_*.py; do
  "${PY:-python3}" -m "tests.fuzz.$(basename "$target" .py)" "$seconds"
done
