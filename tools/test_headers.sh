#!/usr/bin/env bash
# Compiles the core and the bindings against the headers of several releases of ONNX Runtime: those of Debian's suites
# (trixie has 1.21, forky 1.23 or newer), fetched as the build itself does it.
#
#   tools/test_headers.sh [SUITE...]
#
# On a machine without a Debian mirror, ONNXRUNTIME_INCLUDE_DIRS ("DIR:DIR") names the folders instead.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$("${PY:-python3}" -c 'import sys; print(sys.executable)')
options=(-DORTMULTI_BUILD_BINDINGS=ON -DORTMULTI_WERROR=ON -DORTMULTI_LTO=OFF -DCMAKE_BUILD_TYPE=Debug
  -DPython_EXECUTABLE="$python" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)")
compile() {
  local name=$1
  shift
  cmake -S . -B "build/headers-$name" "${options[@]}" "$@" >"build/headers-$name.log"
  grep ONNXRuntimeHeaders "build/headers-$name.log" || true
  cmake --build "build/headers-$name"
}

mkdir -p build
if [[ -n ${ONNXRUNTIME_INCLUDE_DIRS:-} ]]; then
  IFS=: read -ra dirs <<<"$ONNXRUNTIME_INCLUDE_DIRS"
  for i in "${!dirs[@]}"; do
    compile "$i" -DONNXRUNTIME_INCLUDE_DIR="${dirs[i]}"
  done
else
  [[ $# -gt 0 ]] || set -- trixie forky
  for suite in "$@"; do
    dir=build/debian/$suite/libonnxruntime-dev
    tools/fetch_debian_package.sh libonnxruntime-dev "$suite" "$dir"
    compile "$suite" -DONNXRUNTIME_INCLUDE_DIR="$PWD/$dir/usr/include/onnxruntime"
  done
fi
