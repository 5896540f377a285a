#!/usr/bin/env bash
# Runs programs of libraries that use onnxruntime (tests/switching) with it and with ortmulti, and compares the results.
#
#   tools/test_switching.sh [WHEEL] [LIBRARY...]
#
# The environment, of some 2.5 GB, is made in build/switching and kept; WHEEL is installed in it, by default one that is
# built of these sources. A library that cannot be installed is left out with a word; status 1 where none ran, or a
# result differs. On the CPU, with onnxruntime's newest release, also where there is a GPU: it is what the libraries ask
# for. Then the tests with PyTorch's tensors, which are skipped elsewhere. PY is the interpreter that the environment is
# made of.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=
if [[ ${1:-} == *.whl ]]; then
  wheel=$(realpath "$1")
  shift
fi
env=build/switching/env
python=$env/bin/python
[[ -x $python ]] || "${PY:-python3}" -m venv "$env"
unset PYTHONPATH PYTHONHOME ORTMULTI_ONNXRUNTIME_LIBRARY
pip=("$python" -m pip --disable-pip-version-check -q)
if [[ -z $wheel ]]; then
  rm -rf build/switching/wheel
  "${pip[@]}" wheel --no-deps --wheel-dir build/switching/wheel .
  wheel=$(realpath build/switching/wheel/*.whl)
fi
"${pip[@]}" install "${wheel}[cpu]"
# The one before had the same version.
"${pip[@]}" install --force-reinstall --no-deps "$wheel"
"$python" -c 'import ortmulti, sys; print(f"ortmulti {ortmulti.__version__} of {ortmulti.__path__[0]}"); sys.exit(sys.prefix not in ortmulti.__file__)'
status=0
"$python" -m tests.switching "$@" || status=1
# The environment of the other tests has no PyTorch.
if "$python" -c 'import torch' 2>/dev/null; then
  echo "== PyTorch's tensors"
  "${pip[@]}" install 'pytest>=8.3' 'pytest-timeout>=2.3' 'hypothesis>=6.100'
  "$python" -m pytest -q -p no:cacheprovider -k torch tests/api/test_dlpack.py || status=1
fi
exit $status
