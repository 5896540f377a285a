#!/usr/bin/env bash
# Runs the tests against an installed wheel: in a new virtual environment, from a folder with the tests and what they
# read, and without the sources of the package.
#
#   tools/test_wheel.sh WHEEL [PYTEST_OPTION...]
#
# Default options: -m "not slow". PY is the interpreter that the environment is made of; RUNTIME=gpu installs
# onnxruntime-gpu (default cpu); EXTRAS are further extras, such as "ray", whose tests are skipped without them.
set -euo pipefail
wheel=$(realpath "$1")
shift
[[ $# -gt 0 ]] || set -- -m "not slow"
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PY:-python3}" -m venv "$work/env"
unset PYTHONPATH PYTHONHOME ORTMULTI_ONNXRUNTIME_LIBRARY
python=$work/env/bin/python
"$python" -m pip --disable-pip-version-check -q install "${wheel}[${RUNTIME:-cpu},test${EXTRAS:+,$EXTRAS}]"

# pyproject.toml has pytest's configuration; the rest is read by tests. No python/ and no cpp/.
mkdir "$work/tree"
tar -c --exclude=__pycache__ \
  CHANGELOG.md CMakeLists.txt CONTRIBUTING.md README.md SECURITY.md benchmarks deploy docs examples mkdocs.yml pyproject.toml \
  tests tools | tar -x -C "$work/tree"
cd "$work/tree"
"$python" -c 'import ortmulti, sys; print(f"ortmulti {ortmulti.__version__} of {ortmulti.__path__[0]}"); sys.exit(sys.prefix not in ortmulti.__file__)'
PATH=$work/env/bin:$PATH "$python" -m pytest -p no:cacheprovider "$@"
