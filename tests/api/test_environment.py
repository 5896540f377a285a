"""What ONNX Runtime's environment is made with, each in a process of its own; and what cannot be set."""

from __future__ import annotations

from typing import Any

import pytest

import ortmulti
from tests.support import onnx_models
from tests.support.processes import lines

MODEL = onnx_models.matmul(8)


def printed(code: str) -> list[str]:
    return lines(code, MODEL)


# --- Global thread pools ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "configure",
    [
        "om.set_global_thread_pool_sizes(5, 1)",
        "om.set_global_thread_pool_sizes(inter_op_num_threads=1, intra_op_num_threads=np.int64(5))",
        "om.configure(global_thread_pools=om.GlobalThreadPools(5, 1, allow_spinning=False, set_denormal_as_zero=True))",
        "om.set_global_thread_pool_sizes(2, 1); om.configure(global_thread_pools=om.GlobalThreadPools(5, 1))",
        # What asks the library, or sets what can be set at any time, does not make the environment.
        "om.get_available_providers(); om.get_build_info(); om.disable_telemetry_events(); "
        "om.set_default_logger_severity(3); om.SessionOptions(); om.set_global_thread_pool_sizes(5, 1)",
    ],
)
def test_sessions_share_the_global_threads(configure: str) -> None:
    assert printed(
        f"""
    expected = None
    {configure}
    om.RunOptions()  # makes the environment
    before = threads()
    sessions = [session(use_per_session_threads=False) for _ in range(3)]
    print(len(before) >= 5, threads() - before)
    results = [s.run(None, {{"x": x}})[0] for s in sessions]
    own = session()  # has threads of its own even so
    print(all((result == own.run(None, {{"x": x}})[0]).all() for result in results))
    with om.create_sessions(model, "cpu", 2, sessions[0].get_session_options()) as created:
        print((created[0].run(None, {{"x": x}})[0] == results[0]).all())
    """
    ) == ["True set()", "True", "True"]


def test_threads_are_bound_to_processors() -> None:
    """The processor's number is that of `GlobalThreadPools`, which counts from 1, less one."""
    assert printed(
        """
    cpu = min(os.sched_getaffinity(0))
    om.configure(global_thread_pools=om.GlobalThreadPools(2, 1, intra_op_thread_affinities=str(cpu + 1)))
    before = threads()
    om.RunOptions()
    session(use_per_session_threads=False).run(None, {"x": x})
    print(any(os.sched_getaffinity(int(tid)) == {cpu} for tid in threads() - before))
    """
    ) == ["True"]


def test_without_global_threads_such_a_session_is_refused() -> None:
    assert printed(
        """
    error = error_of(session, use_per_session_threads=False)
    print("set_global_thread_pool_sizes" in error, "use_per_session_threads" in error, error.split(":")[0])
    options = om.SessionOptions()
    options.use_per_session_threads = False
    print(error_of(om.create_sessions, model, "cpu", 2, options).split(":")[0])
    print(session().run(None, {"x": x})[0].shape)
    """
    ) == ["True True InvalidArgument", "InvalidArgument", "(1, 8)"]


@pytest.mark.parametrize(
    "first", ["session()", "om.RunOptions()", "om.OrtValue.ortvalue_from_numpy(x)", "om.load(model, 'cpu').close()"]
)
def test_it_is_refused_once_the_environment_is_there(first: str) -> None:
    assert printed(
        f"""
    {first}
    print(error_of(om.set_global_thread_pool_sizes, 2, 1).split(":")[0])
    print(error_of(om.configure, global_thread_pools=om.GlobalThreadPools()).split(":")[0])
    print(session().run(None, {{"x": x}})[0].shape)
    """
    ) == ["Fail", "Fail", "(1, 8)"]


def test_a_forked_child_does_not_have_the_threads_and_can_have_its_own() -> None:
    assert printed(
        """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)

    def own():
        print(session(use_per_session_threads=False).run(None, {"x": x})[0].shape, flush=True)

    def inherits():
        print(error_of(inherited.run, None, {"x": x}).split(":")[0])
        print(error_of(session, use_per_session_threads=False).split(":")[0])
        print(session().run(None, {"x": x})[0].shape, flush=True)

    om.set_global_thread_pool_sizes(2, 1)
    print(forked(own), flush=True)
    inherited = session(use_per_session_threads=False)
    print(forked(inherits), inherited.run(None, {"x": x})[0].shape)
    """
    ) == ["(1, 8)", "0", "ForkError", "ForkError", "(1, 8)", "0 (1, 8)"]


@pytest.mark.parametrize(
    "arguments",
    [(-1, 0), (0, -1), (2**31, 0), *((2, 1, None, text) for text in ("first", "1;2", "1;")), (0, 1, None, "1")],
)
def test_pools_of_values_that_cannot_be(arguments: Any) -> None:
    with pytest.raises(ortmulti.InvalidArgument) as error:
        ortmulti.GlobalThreadPools(*arguments)
    assert not isinstance(error.value, TypeError)
    if len(arguments) == 2:
        with pytest.raises(ortmulti.InvalidArgument, match="op_num_threads"):
            ortmulti.set_global_thread_pool_sizes(*arguments)


@pytest.mark.parametrize(
    "arguments", [("2",), (2.0,), (True,), (None,), (1, None), (1, 1, 1), (1, 1, None, 1), (1, 1, None, "", 0)]
)
def test_pools_of_other_types(arguments: Any) -> None:
    calls = [lambda: ortmulti.GlobalThreadPools(*arguments), lambda: ortmulti.configure(global_thread_pools=arguments)]
    if len(arguments) <= 2:
        calls.append(lambda: ortmulti.set_global_thread_pool_sizes(*arguments))
    for call in calls:
        with pytest.raises(ortmulti.InvalidType):
            call()


# --- The rest ---------------------------------------------------------------------------------------------------------


def test_what_the_c_interface_has_no_call_for() -> None:
    ortmulti.set_default_logger_verbosity(0)
    with pytest.raises(ortmulti.NotImplemented, match="log_verbosity_level"):
        ortmulti.set_default_logger_verbosity(1)
    for seed in (0, 1234, 2**40):
        with pytest.raises(ortmulti.NotImplemented, match="seed"):
            ortmulti.set_seed(seed)
    for function in (ortmulti.set_default_logger_verbosity, ortmulti.set_seed):
        with pytest.raises(ortmulti.InvalidType):
            function("1")


def test_the_debug_information_says_what_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    ortmulti.print_debug_info()
    text = capsys.readouterr().out
    for words in (ortmulti.__version__, ortmulti.get_version_string(), "libonnxruntime", "CPUExecutionProvider"):
        assert words in text
