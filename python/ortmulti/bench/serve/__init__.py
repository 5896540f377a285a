"""Throughput and latency of pools, and of onnxruntime in threads: `ortmulti bench run`."""
