"""The application that `serve deploy` would import, for test_ray_serve.py."""

from __future__ import annotations

import os

import ortmulti

app = ortmulti.ray.deployment(os.environ["RAY_TEST_MODEL"], gpus=4, devices="cpu").bind()
