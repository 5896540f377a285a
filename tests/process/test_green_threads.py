"""Processes in which gevent or eventlet has replaced the threads of Python: sessions and pools answer as elsewhere."""

from __future__ import annotations

import pytest

from tests.support import onnx_models
from tests.support.processes import run_child

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}

BEFORE = """
import sys
from _thread import allocate_lock
import numpy as np

model = bytes.fromhex(sys.argv[1])
x = {"x": np.ones((1, 8), np.float32)}
"""

FIRST = """
session = om.InferenceSession(model, providers=["CPUExecutionProvider"])
assert session.run(None, x)[0].shape == (1, 8)
"""

REST = """
import logging, os, threading

expected = session.run(None, x)[0]

def check(outputs, error=None):
    assert (outputs[0] == expected).all() and not error, error

def answers(call):
    "Has a native thread call back, and waits without a wait of `threading`."
    called = allocate_lock()
    called.acquire()
    results = []
    call(lambda *given: (results.append(given), called.release()))
    assert called.acquire(timeout=30)
    return results[0]

check(*answers(lambda back: session.run_async(None, x, lambda *given: back(*given[:2]), None))[:1])

def work(pool, count):
    check(pool.run(None, x))
    for wait in [lambda future: None, lambda future: future.add_done_callback(lambda _: None)]:
        future = pool.submit(None, x)
        wait(future)
        check(future.result(timeout=30))
    answered = pool.submit(None, x)
    assert answers(answered.add_done_callback) == (answered,)
    for outputs in pool.map([x] * count):
        check(outputs)
    for _, future in pool.as_completed([x] * count):
        check(future.result())

for wait in ["all", "first", "none"]:
    how = om.Loading(wait=wait)
    with om.load(model, "cpu", sessions_per_device=2, loading=how, batching=om.Batching(4), in_flight=2) as pool:
        greenlets = [threading.Thread(target=work, args=[pool, 20]) for _ in range(3)]
        for each in greenlets:
            each.start()
        for each in greenlets:
            each.join()
        pool.sleep("session")
        check(pool.run(None, x))  # a thread of its own makes the session
        pool.replace_model(model)
        work(pool, 3)

with om.ModelRepository("cpu") as repository:
    repository.add("one", model)
    for name in ["two", "three", "four", "five"]:  # which wait for each other
        repository.add(name, model, wait="none")
    work(repository["one"], 3)
    while any(model.state == "LOADING" for model in repository.index()):
        os.sched_yield()
    check(repository.run("five", None, x))

import onnxruntime
with om.patch_onnxruntime():
    check(onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, x))

# A record of ONNX Runtime's, from a thread of the library: a handler's lock is a greenlet's.
records = []
class Handler(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage())
logger = logging.getLogger("ortmulti.onnxruntime")
logger.addHandler(Handler())
logger.setLevel(10)
options = om.SessionOptions()
options.log_severity_level = 0
om.InferenceSession(model, options, providers=["CPUExecutionProvider"])
assert records
print("done")
"""


@pytest.mark.parametrize("first", ["patch", "import", "session"])
@pytest.mark.parametrize("library", PATCHES)
def test_sessions_pools_and_repositories_work_where_threads_are_greenlets(library: str, first: str) -> None:
    pytest.importorskip(library)
    steps = ["import ortmulti as om", FIRST]
    steps.insert(["patch", "import", "session"].index(first), PATCHES[library])
    code = "\n".join([BEFORE, *steps, REST])
    quiet = ("-W", "ignore")  # eventlet warns of itself
    child = run_child(code, onnx_models.matmul(8).hex(), options=quiet, timeout=60)
    assert (child.returncode, child.stdout) == (0, "done\n"), child.stderr
