"""The ways of ortmulti: a pool, and a session with bound values; each with and without NHWC and CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ortmulti
from benchmarks.pytorch.plan import Contender, Way
from ortmulti.bench.strategies.base import Array

from .plan import Setting

SIDE = "ortmulti"


def contenders(model: Path, images: Array, device: str, setting: Setting) -> list[Contender]:
    """Every way that the device has.

    Args:
        model: the model in the setting's precision.
        images: [batch, 3, 224, 224] in the model's type.
        device: "cuda:N" or "cpu".
        setting: what is compared.
    """
    on_gpu = device != "cpu"
    found = []
    for nhwc in (False, True) if on_gpu else (False,):
        for graph in (False, True) if on_gpu else (False,):
            more = f"{', NHWC' if nhwc else ''}{', graph' if graph else ''}"
            options = {"use_tf32": int(setting.precision == "tf32"), "prefer_nhwc": int(nhwc)} if on_gpu else None
            on_device = setting.place == "device"
            pool = partial(_pool, model, images, device, options, graph, on_device)
            found.append(Contender(SIDE, f"pool{more}", pool))
            if on_device:
                found.append(Contender(SIDE, f"bound{more}", partial(_bound, model, images, device, options, graph)))
    return found


def _value(array: Array, device: str) -> ortmulti.OrtValue:
    kind, _, index = device.partition(":")
    return ortmulti.OrtValue.ortvalue_from_numpy(array, kind, int(index or 0))


@contextmanager
def _pool(
    model: Path, images: Array, device: str, options: dict[str, Any] | None, graph: bool, on_device: bool
) -> Iterator[Way]:
    # What is a default is left out.
    more: dict[str, Any] = {"cuda_graph": True} if graph else {}
    asked: dict[str, Any] = {"outputs": "device"} if on_device else {}
    with ortmulti.load(model, device, 1, None, options, **more) as pool:
        feed = {"input": _value(images, device) if on_device else images}
        yield Way(lambda: pool.run(None, feed, **asked)[0], _array)


def _array(output: Any) -> Array:
    result: Array = output.numpy() if isinstance(output, ortmulti.OrtValue) else output
    return result


@contextmanager
def _bound(model: Path, images: Array, device: str, options: dict[str, Any] | None, graph: bool) -> Iterator[Way]:
    """A session with input and output bound to values on the device, as a user of onnxruntime's interface does it."""
    given = {**(options or {}), **({"enable_cuda_graph": 1} if graph else {})}
    with ortmulti.create_sessions(model, device, provider_options=given or None) as sessions:
        session = sessions[0]
        binding = session.io_binding()
        output = _value(images[:, 0, 0, :1].repeat(1000, axis=1), device)  # [batch, 1000], of the images' type
        binding.bind_ortvalue_input("input", _value(images, device))
        binding.bind_ortvalue_output("output", output)

        def run() -> ortmulti.OrtValue:
            session.run_with_iobinding(binding)
            return output

        yield Way(run, _array)
