"""The ways of PyTorch: eager, channels_last, as a CUDA graph, compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ortmulti.tools.strategies.base import Array

from .network import make_network
from .plan import Setting
from .ways import Contender, Way

SIDE = "pytorch"


def configure(torch: Any, precision: str, benchmark: bool) -> None:
    """The process's switches.

    Args:
        torch: the module.
        precision: see `Setting`.
        benchmark: whether cuDNN's algorithms are searched by trying them. PyTorch keeps what it chose first for a
            shape, so that this cannot change within a process.
    """
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def reference(torch: Any, model: Path, images: Array, device: str) -> Array:
    """PyTorch's output in fp32 without TF32: float64 [batch, 1000].

    Args:
        torch: the module.
        model: the fp32 model.
        images: float32 [batch, 3, 224, 224].
        device: where it is computed.
    """
    configure(torch, "fp32", False)
    with torch.inference_mode():
        network = make_network(torch, model).to(device)
        result: Array = network(torch.from_numpy(images).to(device)).cpu().numpy().astype(np.float64)
    return result


def contenders(
    torch: Any, model: Path, images: Array, device: str, setting: Setting, compile_modes: Sequence[str]
) -> list[Contender]:
    """Every way that the device has.

    Args:
        torch: the module, configured.
        model: the model in the setting's precision.
        images: [batch, 3, 224, 224] in the model's type.
        device: "cuda:N" or "cpu".
        setting: what is compared.
        compile_modes: torch.compile's modes.
    """

    def contender(name: str, prepare: Callable[[Any, Any], Callable[[Any], Any]], channels_last: bool) -> Contender:
        opened = partial(_open, torch, model, images, device, setting.place, prepare, channels_last)
        return Contender(SIDE, f"{name}, channels_last" if channels_last else name, opened)

    preparations: list[tuple[str, Callable[[Any, Any], Callable[[Any], Any]]]] = [("eager", _eager)]
    if device != "cpu":
        preparations.append(("graph", partial(_graph, torch)))
    preparations += [(f"compile ({mode})", partial(_compile, torch, mode)) for mode in compile_modes]
    return [contender(name, prepare, last) for name, prepare in preparations for last in (False, True)]


def plain(torch: Any, model: Path, images: Array, device: str, setting: Setting) -> list[Contender]:
    """PyTorch without any of this, for a process in which cuDNN's algorithms are not searched."""
    opened = partial(_open, torch, model, images, device, setting.place, _eager, False)
    return [Contender(SIDE, "eager, no cudnn.benchmark", opened)]


def _eager(network: Any, _: Any) -> Callable[[Any], Any]:
    forward: Callable[[Any], Any] = network
    return forward


def _compile(torch: Any, mode: str, network: Any, _: Any) -> Callable[[Any], Any]:
    forward: Callable[[Any], Any] = torch.compile(network, mode=mode)
    return forward


def _graph(torch: Any, network: Any, images: Any) -> Callable[[Any], Any]:
    """The network captured over a copy of `images`, into which each run's images are copied unless they lie there."""
    fixed = torch.empty_like(images).copy_(images)
    side = torch.cuda.Stream(images.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            network(fixed)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = network(fixed)

    def forward(images: Any) -> Any:
        if images is not fixed:
            fixed.copy_(images, non_blocking=True)
        graph.replay()
        return output

    forward.fixed = fixed  # type: ignore[attr-defined]
    return forward


@contextmanager
def _open(
    torch: Any,
    model: Path,
    images: Array,
    device: str,
    place: str,
    prepare: Callable[[Any, Any], Callable[[Any], Any]],
    channels_last: bool,
) -> Iterator[Way]:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with torch.inference_mode():
        network = make_network(torch, model).to(device, memory_format=layout)
        there = torch.from_numpy(images).to(device).to(memory_format=layout)
        forward = prepare(network, there)
        # A graph's own input is where a user who has a graph writes to.
        there = getattr(forward, "fixed", there)
        forward(there)
    wait = torch.cuda.synchronize if device != "cpu" else (lambda: None)
    if place == "host":
        yield Way(_from_host(torch, forward, images, there, wait), _array)
    else:
        yield Way(_on_device(torch, forward, there, wait), _array)


def _array(output: Any) -> Array:
    result: Array = output if isinstance(output, np.ndarray) else output.cpu().numpy()
    return result


def _on_device(torch: Any, forward: Callable[[Any], Any], there: Any, wait: Callable[[], None]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.inference_mode():
            output = forward(there)
        wait()
        return output

    return run


def _from_host(
    torch: Any, forward: Callable[[Any], Any], images: Array, there: Any, wait: Callable[[], None]
) -> Callable[[], Any]:
    """A new array in, a new array out, as a server has them; through pinned memory that is kept, in one stream."""
    if there.device.type == "cpu":

        def on_cpu() -> Any:
            with torch.inference_mode():
                return forward(torch.from_numpy(images)).numpy()

        return on_cpu
    pinned = torch.empty(images.shape, dtype=there.dtype, pin_memory=True)
    answer = torch.empty((len(images), 1000), dtype=there.dtype, pin_memory=True)

    def run() -> Any:
        with torch.inference_mode():
            pinned.copy_(torch.from_numpy(images))
            there.copy_(pinned, non_blocking=True)
            answer.copy_(forward(there), non_blocking=True)
        wait()
        return answer.numpy().copy()

    return run
