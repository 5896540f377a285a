"""onnxruntime's interface."""
