"""ResNet-50 v1.5: stages of 3, 4, 6 and 3 bottlenecks, the stride in their 3x3 convolutions, 102 MB in fp32."""

from __future__ import annotations

import math

from ortmulti.bench.models._graph import PRECISIONS, Graph

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width of the bottlenecks and their number."""

EXPANSION = 4

INPUT_SHAPE = (3, 224, 224)
"""Of one image."""


def build(precision: str = "fp32") -> Graph:
    """Describe the model.

    Input "input": [batch, 3, 224, 224]. Output "output": [batch, 1000], logits.
    BatchNormalization stays apart from the convolutions, as in an exported model that has not been optimized.

    Args:
        precision: "fp32", or "fp16" for the same values rounded; inputs, weights and output are of that type.
    """
    graph = Graph("resnet50", dtype=PRECISIONS[precision])
    value = graph.input("input", ("batch", *INPUT_SHAPE))
    value = _convolution(graph, value, "conv1", 3, 64, kernel=7, stride=2, relu=True)
    value = graph.node("MaxPool", value, name="maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (width, blocks) in enumerate(STAGES, start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            value = _bottleneck(graph, value, f"layer{stage}.{block}", channels, width, stride)
            channels = width * EXPANSION
    value = graph.node("GlobalAveragePool", value, name="avgpool")
    value = graph.node("Flatten", value, name="flatten", axis=1)
    weight = graph.weight("fc.weight", (1000, channels), std=1 / math.sqrt(channels))
    bias = graph.weight("fc.bias", (1000,), std=0.1)
    graph.node("Gemm", value, weight, bias, name="fc", output="output", transB=1)
    graph.output("output", ("batch", 1000))
    return graph


def _bottleneck(graph: Graph, value: str, name: str, channels: int, width: int, stride: int) -> str:
    out = width * EXPANSION
    inner = _convolution(graph, value, f"{name}.conv1", channels, width, relu=True)
    inner = _convolution(graph, inner, f"{name}.conv2", width, width, kernel=3, stride=stride, relu=True)
    # Half the size of the path beside it, so that the activations do not double with every block.
    inner = _convolution(graph, inner, f"{name}.conv3", width, out, gain=0.5)
    if stride != 1 or channels != out:
        value = _convolution(graph, value, f"{name}.downsample", channels, out, stride=stride)
    value = graph.node("Add", inner, value, name=f"{name}.add")
    return graph.node("Relu", value, name=f"{name}.relu")


def _convolution(
    graph: Graph,
    value: str,
    name: str,
    channels: int,
    out: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    relu: bool = False,
    gain: float = 1.0,
) -> str:
    """Convolution with He-scaled weights and BatchNormalization with statistics near 0 and 1."""
    fan_in = channels * kernel * kernel
    shape = (out, channels, kernel, kernel)
    weight = graph.weight(f"{name}.weight", shape, std=math.sqrt(2 / fan_in))
    pad = kernel // 2
    value = graph.node(
        "Conv",
        value,
        weight,
        name=name,
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[pad] * 4,
    )
    statistics = (("weight", gain, 0.05), ("bias", 0.0, 0.05), ("running_mean", 0.0, 0.05), ("running_var", 1.0, 0.05))
    parts = [graph.weight(f"{name}.bn.{part}", (out,), mean=mean, std=std) for part, mean, std in statistics]
    value = graph.node("BatchNormalization", value, *parts, name=f"{name}.bn", epsilon=1e-5)
    return graph.node("Relu", value, name=f"{name}.relu") if relu else value
