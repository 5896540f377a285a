"""Does an installed ortmulti work, and work on its own? Needs NumPy and onnxruntime beside it, and nothing else.

    python -I tools/smoke_wheel.py [--onnxruntime FOLDER] [--server]

Runs a small model, given as bytes and as a file, and compares with onnxruntime. Then every module and every shared
library of the process must belong to this environment, to Python or to the system. -I keeps the caller's folder,
PYTHONPATH and user packages out. With --server the package must be able to serve HTTP and gRPC, too, and answers a
request. Free-threaded Python must have the GIL off at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

MODEL = base64.b64decode(
    "CAgSADpxChEKAXgKAXcSAWgiBk1hdE11bAoMCgFoEgF5IgRSZWx1EgVzbW9rZSobCAIIAhABIhAAAIA/AACAvwAAAD8AAABAQgF3WhQKAXgSDwoNCAESCQoD"
    "EgFuCgIIAmIUCgF5Eg8KDQgBEgkKAxIBbgoCCAJCBAoAEA0="
)
"""y = Relu(x [[1, -1], [0.5, 2]]), of opset 13: float32 [n, 2] -> float32 [n, 2]."""

SYSTEM = [Path(folder) for folder in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share")]
"""Where the C library, the C++ runtime and what they open lie."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnxruntime", type=Path, help="a folder with another release's package onnxruntime")
    parser.add_argument("--server", action="store_true", help="the package has a server, and finds nghttp2")
    arguments = parser.parse_args()
    folder: Path | None = arguments.onnxruntime
    if folder is not None:
        sys.path.insert(0, str(folder.resolve()))

    # Here, where sys.path is what it shall be.
    import ortmulti

    if "onnxruntime" in sys.modules:
        raise AssertionError("import ortmulti imports onnxruntime")
    version = metadata.version("ortmulti")
    if ortmulti.__version__ != version:
        raise AssertionError(f"ortmulti is {ortmulti.__version__}, its distribution says {version}")
    compare()
    if arguments.server:
        if why_not := why_no_server():
            raise AssertionError(why_not)
        asyncio.run(serve())
    import onnxruntime

    if sysconfig.get_config_var("Py_GIL_DISABLED") and getattr(sys, "_is_gil_enabled", bool)():
        raise AssertionError("the GIL is on: an import turned it on")

    if folder is not None and folder.resolve() not in Path(onnxruntime.__file__).resolve().parents:
        raise AssertionError(f"onnxruntime is {onnxruntime.__file__}, not of {folder}")
    if strangers := sorted({*foreign(modules(), folder), *foreign(mapped(), folder)}):
        raise AssertionError("loaded from elsewhere: " + ", ".join(map(str, strangers)))
    print(
        f"ortmulti {version} works with onnxruntime {onnxruntime.__version__}, "
        f"{sys.implementation.cache_tag}{sys.abiflags} {sysconfig.get_platform()}"
    )


def compare() -> None:
    """One model, from bytes and from a file; the result is known, and onnxruntime must agree with it."""
    import numpy as np

    import ortmulti

    x = np.array([[1, 2], [-3, 0.25], [0, 0]], np.float32)
    results = {}
    with ortmulti.InferenceSession(MODEL, providers=["CPUExecutionProvider"]) as session:
        [results["from bytes"]] = session.run(None, {"x": x})
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.onnx"
        path.write_bytes(MODEL)
        with ortmulti.load(path, devices="cpu") as pool, ThreadPoolExecutor(4) as threads:
            [results["from a file"]] = pool.sessions[0].run(None, {"x": x})
            for [result] in threads.map(lambda _: pool.run(None, {"x": x}), range(1000)):
                if not np.array_equal(result, results["from a file"]):
                    raise AssertionError(f"a result of a thread is {result!r}")

    # ortmulti had to work without it.
    import onnxruntime

    theirs = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    [results["of onnxruntime"]] = theirs.run(None, {"x": x})
    expected = np.maximum(x @ np.array([[1, -1], [0.5, 2]], np.float32), 0)
    for name, result in results.items():
        if result.dtype != np.float32 or not np.array_equal(result, expected):
            raise AssertionError(f"the result {name} is {result!r}, not {expected!r}")


def why_no_server() -> str:
    """What keeps `ortmulti serve` from listening; "": nothing."""
    from ortmulti import _core

    return _core.why_no_http2() if hasattr(_core, "Front") else "it was built without the server's headers"


async def serve() -> None:
    """One request to the server's application, which needs no other package."""
    import ortmulti

    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"inputs": [tensor]}).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    with ortmulti.ModelRepository("cpu") as models:
        models.add("m", MODEL)
        scope = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "headers": []}
        await ortmulti.serve.app(models)(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    if sent[0]["status"] != 200 or json.loads(body)["outputs"][0]["data"] != [2.0, 3.0]:
        raise AssertionError(f"the server answers {sent[0]['status']} {body!r}")


def modules() -> Iterator[Path]:
    """The files of the imported modules, but for this one."""
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and name != "__main__":
            yield Path(path)


def mapped() -> Iterator[Path]:
    """The files of which this process has mapped code: shared libraries and the interpreter."""
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        _, _, path = line.partition("/")
        if path and "x" in line.split()[1]:
            yield Path("/" + path.removesuffix(" (deleted)"))


def foreign(paths: Iterator[Path], folder: Path | None) -> Iterator[Path]:
    """Those that belong neither to this environment, nor to Python's standard library, nor to the system."""
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix})).resolve()
    own = [Path(sys.prefix).resolve(), *([folder.resolve()] if folder else [])]
    # Packages of the interpreter that the environment is made of are not the environment's.
    others = [library / "site-packages", Path("/usr/lib/python3/dist-packages"), Path("/usr/local/lib/python3")]
    # Debian's Python has its sitecustomize.py in /etc.
    python = [library, Path(sys.base_prefix, "bin").resolve(), Path("/etc", f"python3.{sys.version_info.minor}")]
    libpython = Path(str(sysconfig.get_config_var("LIBDIR"))).resolve()
    for path in {path.resolve() for path in paths}:
        parents = set(path.parents)
        if parents & set(own):
            continue
        if parents & set(others) or not (
            parents & {*SYSTEM, *(place.resolve() for place in SYSTEM), *python}
            or (path.parent == libpython and path.name.startswith("libpython"))
        ):
            yield path


if __name__ == "__main__":
    main()
