"""Processes that end while a pool is busy: nothing hangs, and every request is told once."""

from __future__ import annotations

import pytest

from tests.support.processes import check_child, run_child

COMMON = """
    import sys, threading
    import numpy as np
    import ortmulti
    from ortmulti import Batching
    from tests.support import onnx_models

    lock = threading.Lock()

    def say(what):  # one write, also where several threads say something
        with lock:
            sys.stdout.write(what)
            sys.stdout.flush()

    pool = ortmulti.load(onnx_models.matmul(256, 4), "cpu", 2, warmup=True, **eval(f"dict({sys.argv[1]})"))
    x = {"x": np.zeros((8, 256), np.float32)}
"""

JOINED, DELAYED = "batching=Batching(32)", "batching=Batching(32, max_delay_ms=60_000)"


@pytest.fixture(params=["", JOINED, DELAYED])
def arguments(request: pytest.FixtureRequest) -> str:
    """The arguments of `load`."""
    arguments: str = request.param
    return arguments


def told(printed: str) -> int:
    """How many requests were told of: "d" where done, "c" where cancelled, "f" where failed."""
    assert set(printed) <= {"c", "d", "f"}
    return len(printed)


OUTSTANDING = """
    def tell(future):
        say("c" if future.cancelled() else "f" if future.exception() else "d")

    for _ in range(300):
        pool.submit(None, x).add_done_callback(tell)
"""


def test_the_main_thread_ends_with_futures_outstanding(arguments: str) -> None:
    assert told(check_child(COMMON + OUTSTANDING, arguments)) == 300


def test_an_error_that_nobody_catches() -> None:
    child = run_child(COMMON + OUTSTANDING + '\n    raise LookupError("at the end")', "")
    assert child.returncode == 1
    assert child.stderr.splitlines()[-1] == "LookupError: at the end"
    assert told(child.stdout) == 300


@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize("call", ["run(None, x)", "submit(None, x)", "submit(None, x).result()", "submit(x).cancel()"])
def test_daemon_threads_may_be_asking(call: str, arguments: str, attempt: int) -> None:
    """More than once, since they are stopped wherever they happen to be."""
    if attempt and DELAYED in arguments:
        pytest.skip("slow, and once is enough")
    printed = check_child(
        COMMON
        + f"""
    from concurrent.futures import CancelledError
    begun = threading.Barrier(5)

    def ask():
        pool.submit(None, x)
        begun.wait()
        while True:
            try:
                pool.{call}
            except (ortmulti.ClosedError, CancelledError):
                return

    for _ in range(4):
        threading.Thread(target=ask, daemon=True).start()
    begun.wait()
    say("end")
    """,
        arguments,
    )
    assert printed == "end"


def test_threads_may_go_on_asking_after_the_main_one_has_ended() -> None:
    printed = check_child(
        COMMON
        + """
    main_is_over = threading.Event()

    def ask():
        threading.main_thread().join()
        for future in [pool.submit(None, x) for _ in range(100)]:
            future.result(30)
            say("d")
        pool.run(None, x)

    for _ in range(3):
        threading.Thread(target=ask).start()
    """,
        "",
    )
    assert told(printed) == 300


@pytest.mark.parametrize("arguments", ["", JOINED, DELAYED.replace("60_000", "1")])
def test_an_exit_handler_may_ask_while_the_pool_is_open(arguments: str) -> None:
    printed = check_child(
        """
    import atexit, sys
    import numpy as np
    import ortmulti
    from ortmulti import Batching
    from tests.support import onnx_models

    with ortmulti.load(onnx_models.matmul(256, 4), "cpu") as pool:  # registers ortmulti's own handler, to run last
        pass
    x = {"x": np.zeros((8, 256), np.float32)}

    @atexit.register
    def ask():
        for future in [pool.submit(None, x) for _ in range(20)]:
            assert future.result(30)[0].shape == (8, 256)
        pool.run(None, x)
        print("answered")

    pool = ortmulti.load(onnx_models.matmul(256, 4), "cpu", 2, **eval(f"dict({sys.argv[1]})"))
    """,
        arguments,
    )
    assert printed == "answered\n"


def test_an_exit_handler_that_comes_after_ours_finds_the_pool_closed() -> None:
    printed = check_child(
        """
    import atexit
    import numpy as np
    import ortmulti
    from tests.support import onnx_models

    @atexit.register
    def ask():
        for call in (pool.submit, pool.run):
            try:
                call(None, x)
            except ortmulti.ClosedError as error:
                print("closed")
        # A new one can run, but no thread would deliver the answer of a submitted request.
        late = ortmulti.load(onnx_models.matmul(256, 4), "cpu")
        print(late.run(None, x)[0].shape)
        try:
            late.submit(None, x)
        except ortmulti.ClosedError as error:
            print(error)

    x = {"x": np.zeros((8, 256), np.float32)}
    pool = ortmulti.load(onnx_models.matmul(256, 4), "cpu")
    pool.submit(None, x).result()
    """,
    )
    assert printed == "closed\nclosed\n(8, 256)\nthe interpreter is ending: the pool takes no more requests\n"


def test_a_callback_that_asks_while_the_pool_is_closing_is_refused(arguments: str) -> None:
    printed = check_child(
        COMMON
        + """
    def again(future):
        if future.cancelled() or future.exception():
            return
        try:
            pool.submit(None, x).add_done_callback(again)
        except ortmulti.ClosedError:
            say("r")

    for _ in range(50):
        pool.submit(None, x).add_done_callback(again)
    """,
        arguments,
    )
    assert set(printed) <= {"r"}


def test_an_event_loop_that_is_left_with_requests_outstanding() -> None:
    printed = check_child(
        COMMON
        + """
    import asyncio

    async def leave():
        asks = [asyncio.create_task(pool.run_async(None, x)) for _ in range(100)]
        await asks[0]
        return asks

    asks = asyncio.run(leave())  # which cancels the others
    assert all(ask.done() for ask in asks)
    say("end")
    """,
        "",
    )
    assert printed == "end"


def test_event_loops_may_be_waiting_in_daemon_threads() -> None:
    child = run_child(
        COMMON
        + """
    import asyncio
    begun = threading.Barrier(3)

    async def ask():
        tasks = [asyncio.create_task(pool.run_async(None, x)) for _ in range(200)]
        await tasks[0]
        begun.wait()
        await asyncio.gather(*tasks, return_exceptions=True)
        while True:
            await asyncio.gather(*(pool.run_async(None, x) for _ in range(20)))

    for _ in range(2):
        threading.Thread(target=asyncio.run, args=(ask(),), daemon=True).start()
    begun.wait()
    say("end")
    """,
        "",
    )
    assert (child.returncode, child.stdout) == (0, "end")
    assert "unraisable" not in child.stderr.lower()


def test_a_forked_child_may_run_a_loop_of_its_own() -> None:
    printed = check_child(
        COMMON
        + """
    import asyncio, os

    async def ask(pool):
        await asyncio.gather(*(pool.run_async(None, x) for _ in range(20)))

    asyncio.run(ask(pool))
    child = os.fork()
    if child:
        asyncio.run(ask(pool))
        assert os.waitpid(child, 0)[1] == 0
        say("parent")
    else:
        with ortmulti.load(onnx_models.matmul(256, 4), "cpu") as own:
            asyncio.run(ask(own))
        say("child ")
        os._exit(0)
    """,
        "",
    )
    assert printed == "child parent"
