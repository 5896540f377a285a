"""ResNet-50 v1.5 in PyTorch, with the weights of the generated ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ortmulti._create.sample_inputs import require_onnx
from ortmulti.tools.models.resnet50 import EXPANSION, STAGES


def make_network(torch: Any, model: Path) -> Any:
    """The network in evaluation mode, on the CPU, in the model's type.

    Args:
        torch: the module.
        model: what `ortmulti.tools.models.make("resnet50", ...)` wrote.
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
