#!/usr/bin/env bash
# Runs the core's tests of a build folder with the ONNX Runtime of the Python environment.
#
#   tools/test_cpp.sh BUILD [CTEST_OPTION...]
#
# ORTMULTI_ONNXRUNTIME_LIBRARY and ORTMULTI_TEST_MODELS are taken from the environment where they are set there.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
: "${ORTMULTI_ONNXRUNTIME_LIBRARY:=$("${PY:-python3}" -c 'from ortmulti._runtime.libraries import find_onnxruntime as find; print(find().path)')}"
: "${ORTMULTI_TEST_MODELS:=$PWD/build/test-models}"
export ORTMULTI_ONNXRUNTIME_LIBRARY ORTMULTI_TEST_MODELS
[[ -d $ORTMULTI_TEST_MODELS ]] || {
  echo "there are no models for the tests in $ORTMULTI_TEST_MODELS: make build/test-models" >&2
  exit 2
}
echo "libonnxruntime: $ORTMULTI_ONNXRUNTIME_LIBRARY"
exec ctest --test-dir "$build" --output-on-failure --no-tests=error "$@"
