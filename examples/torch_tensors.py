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
        arrays = om.example_feed(pool)  # random ones that the model takes: put your own here
        feed = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

        # A tensor is an input where it is (DLPack). With outputs="device" outputs stay where the model runs.
        [y, *_] = pool.run(feed, outputs="device")
        tensor = torch.from_dlpack(y)
        print(tensor.device, tensor.dtype, tuple(tensor.shape))

        # As NumPy arrays, which is the default: PyTorch uses their memory without a copy.
        [array, *_] = pool.run(feed)
        print("equal:", torch.equal(tensor.cpu(), torch.from_numpy(array)))


if __name__ == "__main__":
    main(sys.argv[1])
