"""Sessions of the onnxruntime package for pools: each in a process of its own."""
