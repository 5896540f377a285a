#!/usr/bin/env bash
# Builds the core and its tests with AddressSanitizer and UndefinedBehaviorSanitizer, then with ThreadSanitizer, and
# runs the tests. Suppressions (tests/cpp/*.supp) are for ONNX Runtime's own code alone, which is not instrumented.
#
#   tools/test_sanitizers.sh [address | thread]...
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# -gt 0 ]] || set -- address thread

# ThreadSanitizer's fixed memory layout needs more room than some kernels' address randomization leaves.
plain=()
setarch "$(uname -m)" -R true 2>/dev/null && plain=(setarch "$(uname -m)" -R)

supp=$PWD/tests/cpp
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1
export LSAN_OPTIONS=suppressions=$supp/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=suppressions=$supp/tsan.supp:second_deadlock_stack=1:halt_on_error=1

mkdir -p build
for kind in "$@"; do
  case $kind in
    address) sanitize=address,undefined ;;
    thread) sanitize=thread ;;
    *)
      echo "unknown sanitizer: $kind" >&2
      exit 2
      ;;
  esac
  echo "-- $sanitize"
  cmake -S . -B "build/$kind" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DORTMULTI_BUILD_TESTS=ON -DORTMULTI_SANITIZE="$sanitize" \
    ${ORTMULTI_GOOGLETEST_DIR:+-DORTMULTI_GOOGLETEST_DIR="$ORTMULTI_GOOGLETEST_DIR"} \
    -DPython_EXECUTABLE="$("${PY:-python3}" -c 'import sys; print(sys.executable)')" >"build/$kind.log"
  cmake --build "build/$kind"
  "${plain[@]}" tools/test_cpp.sh "build/$kind"
done
