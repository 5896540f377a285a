"""Programs of libraries that run ONNX models through onnxruntime: run with it, switched to ortmulti, and compared.

`tools/test_switching.sh` makes an environment and runs them; docs/reference/libraries.md says what was seen.
"""
