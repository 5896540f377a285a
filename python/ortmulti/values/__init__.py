"""Values of ONNX Runtime and where they lie."""
