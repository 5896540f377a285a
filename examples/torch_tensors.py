"""PyTorch tensors in and out. On a GPU neither inputs nor outputs are copied to the host.

python examples/torch_tensors.py model.onnx
"""

from __future__ import annotations

import sys

import torch

import ortmulti as om


def main(model: str) -> None:
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    with om.load(model, devices=device) as pool:
        value = pool.get_inputs()[0]
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        x = torch.ones(shape, device=device)

        # A tensor is an input where it is (DLPack). With outputs="device" outputs stay where the model runs.
        [y, *_] = pool.run({value.name: x}, outputs="device")
        tensor = torch.from_dlpack(y)
        print(tensor.device, tensor.dtype, tuple(tensor.shape))

        # As NumPy arrays, which is the default: PyTorch uses their memory without a copy.
        [array, *_] = pool.run({value.name: x})
        print("equal:", torch.equal(tensor.cpu(), torch.from_numpy(array)))


if __name__ == "__main__":
    main(sys.argv[1])
