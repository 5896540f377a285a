"""The main interpreter's work in a process that has made another interpreter."""

from __future__ import annotations

import pytest

from tests.support import onnx_models
from tests.support.processes import check_child


@pytest.mark.parametrize("first", ["interpreter", "library"])
def test_the_main_interpreter_works_beside_a_subinterpreter(first: str) -> None:
    printed = check_child(
        """
        import asyncio, importlib, sys

        interpreters = importlib.import_module(
            "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
        )
        if sys.argv[2] == "interpreter":
            interpreters.create()
        import numpy as np
        import ortmulti

        ortmulti.RunOptions()  # opens the library
        if sys.argv[2] == "library":
            interpreters.create()
        model, x = bytes.fromhex(sys.argv[1]), np.ones(3, np.float32)

        session = ortmulti.InferenceSession(model)
        print(session.run(None, {"x": x})[0])
        with ortmulti.load(model, devices="cpu", batching=ortmulti.Batching(max_size=4, trust=True)) as pool:
            print(*[outputs[0] for outputs in pool.map({"x": x * i} for i in range(3))])
            futures = [pool.submit({"x": x}) for _ in range(20)]
            del futures  # their requests are freed by the core's threads
            print(asyncio.run(pool.run_async({"x": x}))[0])
        """,
        onnx_models.one_node("Neg").hex(),
        first,
    )
    assert printed.split("\n")[:-1] == ["[-1. -1. -1.]", "[-0. -0. -0.] [-1. -1. -1.] [-2. -2. -2.]", "[-1. -1. -1.]"]
