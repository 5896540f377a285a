"""Models that ONNX Runtime optimized once: made, kept in a cache, and found again."""

from __future__ import annotations
