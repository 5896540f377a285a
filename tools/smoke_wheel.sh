#!/usr/bin/env bash
# Installs a wheel in a new, empty virtual environment outside the source tree and runs tools/smoke_wheel.py there, with
# each release of ONNX Runtime that is named: `newest` is the one that the wheel's extra `cpu` installs, others are
# unpacked beside it.
#
#   tools/smoke_wheel.sh WHEEL [newest | VERSION]...
#
# Default: newest 1.21.1 1.23.2. PY is the interpreter that the environment is made of; it must be the wheel's. SERVER=1:
# the wheel must have a server.
set -euo pipefail
wheel=$(realpath "$1")
shift
[[ $# -gt 0 ]] || set -- newest 1.21.1 1.23.2
smoke=$(realpath "$(dirname "$0")")/smoke_wheel.py

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PY:-python3}" -m venv "$work/env"
# Nothing of the caller's: neither its modules nor its folder, home and caches.
cd "$work"
unset PYTHONPATH PYTHONHOME ORTMULTI_ONNXRUNTIME_LIBRARY
pip=("$work/env/bin/python" -m pip --disable-pip-version-check -q)
"${pip[@]}" install "${wheel}[cpu]"
"${pip[@]}" check

run() {
  HOME=$work/home XDG_CACHE_HOME=$work/home/cache ORTMULTI_CACHE=$work/cache "$work/env/bin/python" -I "$smoke" ${SERVER:+--server} "$@"
}
mkdir -p "$work/home"
for release in "$@"; do
  if [[ $release == newest ]]; then
    run
  else
    "${pip[@]}" install --no-deps --target "$work/onnxruntime-$release" "onnxruntime==$release"
    run --onnxruntime "$work/onnxruntime-$release"
  fi
done
