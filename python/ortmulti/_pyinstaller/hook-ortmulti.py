"""The hook of PyInstaller: modules are imported by name, and no module is linked to ONNX Runtime."""

from PyInstaller.utils.hooks import collect_dynamic_libs, collect_submodules, copy_metadata

from ortmulti._runtime.libraries import find_onnxruntime
from ortmulti.errors import LibraryError

# A program that uses one of these imports it. They need packages that are large.
_APART = tuple(f"ortmulti.{name}" for name in ("_pyinstaller", "bench", "cli", "ray", "serve"))

hiddenimports = collect_submodules("ortmulti", filter=lambda name: not name.startswith(_APART))
# nghttp2, in a wheel that brings it along.
binaries = collect_dynamic_libs("ortmulti", search_patterns=["libortmulti_*.so"])
datas = []
try:
    runtime = find_onnxruntime()
except LibraryError:  # as in a program that names its library at run time
    pass
else:
    binaries += collect_dynamic_libs("onnxruntime", search_patterns=["lib*.so*"])
    if runtime.distribution:
        datas += copy_metadata(runtime.distribution)
    if runtime.has_cuda:
        binaries += collect_dynamic_libs("nvidia", search_patterns=["lib*.so*"])
