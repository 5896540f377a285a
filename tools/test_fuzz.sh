#!/usr/bin/env bash
# Fuzzes what reads bytes of others, under AddressSanitizer and UndefinedBehaviorSanitizer where it is C++: with libFuzzer
# where there is a Clang that has it (Debian: clang and libclang-rt-dev), else with our own driver and the compiler that
# there is. The targets are those of tests/fuzz/targets; the ones in Python need PY, a Python that has ortmulti.
#
#   tools/test_fuzz.sh [SECONDS [TARGET...]]
#
# Each target has SECONDS (60). Without names all run; without the server's headers only those that need none. CXX names
# the compiler. Corpora begin with the tests' models and tests/fuzz/write_seeds.py, and stay in build/fuzz/corpus/TARGET:
# libFuzzer's are kept as small as they can be. An input that fails is kept in build/fuzz/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
chosen=${*:-$(cut -d ' ' -f 1 tests/fuzz/targets)}

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
can_be_built=$(cmake --build "$build" --target help | grep -oE 'ortmulti_fuzz_[a-z0-9_]+' | sort -u)
# Less is kept of each allocation, which takes most of the time: a kept input can be run again without these options.
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=4:malloc_context_size=2:max_malloc_fill_size=64}
for target in $chosen; do
  if [[ -f tests/fuzz/fuzz_$target.py ]]; then
    "${PY:-python3}" -m "tests.fuzz.fuzz_$target" "$seconds"
    continue
  fi
  if ! grep -qx "ortmulti_fuzz_$target" <<<"$can_be_built"; then
    [[ $# -eq 0 ]] && continue
    echo "no fuzz target $target can be built: the server's headers may be missing, see $build.log" >&2
    exit 1
  fi
  cmake --build "$build" --target "ortmulti_fuzz_$target"
  length=65536
  [[ $target == http* ]] && length=400 # a byte stands for a line, or a frame
  run=("$build/tests/fuzz/ortmulti_fuzz_$target" -max_len=$length -timeout=10 "-artifact_prefix=build/fuzz/$target-")
  mkdir -p "$corpus/$target"
  "${run[@]}" -max_total_time="$seconds" -print_final_stats=1 "$corpus/$target"
  if has_libfuzzer "$compiler"; then
    rm -rf "$corpus/merged" && mkdir "$corpus/merged"
    "${run[@]}" -merge=1 "$corpus/merged" "$corpus/$target" >"$build.log" 2>&1
    rm -rf "${corpus:?}/$target" && mv "$corpus/merged" "$corpus/$target"
    du -sh "$corpus/$target"
  fi
done
