"""PyTorch's ways to run ResNet-50, and the network as a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pytorch.plan import Contender, Setting, Way
from ortmulti.bench.models._inputs import require_onnx
from ortmulti.bench.models.resnet50 import EXPANSION, STAGES
from ortmulti.bench.strategies.base import Array


def make_network(torch: Any, model: Path) -> Any:
    """The network in evaluation mode, on the CPU, in the model's type.

    Args:
        torch: the module.
        model: what `ortmulti.bench.models.make("resnet50", ...)` wrote.
    """
    onnx = require_onnx()
    weights = {
        tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for tensor in onnx.load(str(model)).graph.initializer
    }
    network = _define(torch)()
    state = {_key(name): weight for name, weight in weights.items()}
    # Of training alone, and not in the ONNX model.
    state |= {name: value for name, value in network.state_dict().items() if name.endswith(".num_batches_tracked")}
    network.load_state_dict(state, strict=True)
    # Loading copies into fp32 parameters, which hold every fp16 value.
    return network.to(next(iter(weights.values())).dtype).eval()


def _key(name: str) -> str:
    """The ONNX model names a convolution's weight after its block; here it belongs to a part of the block."""
    block, _, rest = name.rpartition(".")
    return name if rest != "weight" or block == "fc" or block.endswith(".bn") else f"{block}.conv.weight"


def _define(torch: Any) -> Any:
    """The classes, which need torch.nn's to be derived from."""
    nn = torch.nn

    class Convolution(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, channels: int, out: int, kernel: int = 1, stride: int = 1) -> None:
            super().__init__()
            self.conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
            self.bn = nn.BatchNorm2d(out, eps=1e-5)

        def forward(self, value: Any) -> Any:
            return self.bn(self.conv(value))

    class Bottleneck(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, channels: int, width: int, stride: int) -> None:
            super().__init__()
            out = width * EXPANSION
            self.conv1 = Convolution(channels, width)
            self.conv2 = Convolution(width, width, 3, stride)
            self.conv3 = Convolution(width, out)
            self.downsample = Convolution(channels, out, 1, stride) if stride != 1 or channels != out else None
            self.relu = nn.ReLU(inplace=True)

        def forward(self, value: Any) -> Any:
            inner = self.relu(self.conv1(value))
            inner = self.relu(self.conv2(inner))
            inner = self.conv3(inner)
            if self.downsample is not None:
                value = self.downsample(value)
            return self.relu(inner + value)

    class ResNet50(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = Convolution(3, 64, 7, 2)
            self.relu = nn.ReLU(inplace=True)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1)
            channels = 64
            for stage, (width, blocks) in enumerate(STAGES, start=1):
                layers = []
                for block in range(blocks):
                    layers.append(Bottleneck(channels, width, 2 if stage > 1 and block == 0 else 1))
                    channels = width * EXPANSION
                setattr(self, f"layer{stage}", nn.Sequential(*layers))
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(channels, 1000)

        def forward(self, images: Any) -> Any:
            value = self.maxpool(self.relu(self.conv1(images)))
            value = self.layer4(self.layer3(self.layer2(self.layer1(value))))
            return self.fc(torch.flatten(self.avgpool(value), 1))

    return ResNet50


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
