#!/usr/bin/env bash
# Fuzzes the reader and the rewriter of ONNX models under AddressSanitizer and UndefinedBehaviorSanitizer, from the
# tests' models on: with libFuzzer where there is a Clang that has it (Debian: clang and libclang-rt-dev), else with
# our own driver and the compiler that there is. Then runs the fuzz targets in Python, tests/fuzz/fuzz_*.py; PY is a
# Python that has ortmulti.
#
#   tools/test_fuzz.sh [SECONDS]
#
# CXX names the compiler. The corpus stays in build/fuzz/corpus and grows; an input that fails is kept beside it.
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
mkdir -p "$corpus"
# Large weights only make inputs slow.
find "$ORTMULTI_TEST_MODELS" -maxdepth 1 -name '*.onnx' -size -64k -exec cp {} "$corpus/" \;

cmake -S . -B "build/fuzz/$name" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DORTMULTI_BUILD_FUZZERS=ON -DPython_EXECUTABLE="$("${PY:-python3}" -c 'import sys; print(sys.executable)')" \
  >"build/fuzz/$name.log"
cmake --build "build/fuzz/$name" --target ortmulti_fuzz_onnx
"build/fuzz/$name/tests/fuzz/ortmulti_fuzz_onnx" -max_total_time="$seconds" -max_len=65536 -timeout=10 \
  -print_final_stats=1 -artifact_prefix=build/fuzz/onnx- "$corpus"
for target in tests/fuzz/fuzz_*.py; do
  "${PY:-python3}" -m "tests.fuzz.$(basename "$target" .py)" "$seconds"
done
