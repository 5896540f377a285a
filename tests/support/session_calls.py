"""Calls of a session of `onnx_models.add_mul(3)` and its binding that need the session open, in its own process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import ortmulti
from tests.support.bindings import A, B, make

CPU = ortmulti.OrtDevice.make("cpu", 0)
VALUES = ortmulti.OrtValueVector()

# Those that a forked child may not do either, if the session has a thread pool.
RUNS: dict[str, Callable[[ortmulti.InferenceSession, ortmulti.IOBinding], object]] = {
    "run": lambda session, _: session.run(None, {"a": A, "b": B}),
    "run some": lambda session, _: session.run(["sum"], {"a": A, "b": B}),
    "async": lambda session, _: session.run_async(None, {"a": A, "b": B}, lambda *_: None, None),
    "values": lambda session, _: session.run_with_ort_values(None, {"a": make(A), "b": make(B)}),
    "vector": lambda session, _: session.run_with_ortvaluevector(
        None, ["a", "b"], [make(A), make(B)], ["sum"], VALUES, [CPU]
    ),
    "bound": lambda session, binding: session.run_with_iobinding(binding),
    "create value": lambda session, _: session.create_ortvalue_from_shape_and_type([2], np.float32, "cpu"),
    "dynamic options": lambda session, _: session.set_ep_dynamic_options({"a": "b"}),
    "release graph": lambda session, _: session.release_captured_graph(),
}
OTHERS: dict[str, Callable[[ortmulti.InferenceSession, ortmulti.IOBinding], object]] = {
    "tuning results": lambda session, _: session.get_tuning_results(),
    "set tuning results": lambda session, _: session.set_tuning_results([]),
    "end profiling": lambda session, _: session.end_profiling(),
    "profiling start": lambda session, _: session.get_profiling_start_time_ns(),
    "binding": lambda session, _: session.io_binding(),
    "session's binding": lambda session, _: ortmulti.SessionIOBinding(session),
    "bind input": lambda _, binding: binding.bind_cpu_input("a", A),
    "bind output": lambda _, binding: binding.bind_output("sum"),
    "outputs": lambda _, binding: binding.get_outputs(),
    "synchronize": lambda _, binding: binding.synchronize_inputs(),
    "clear": lambda _, binding: binding.clear_binding_inputs(),
}
