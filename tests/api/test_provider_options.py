"""Options of execution providers are checked by name and value, before a provider or a device is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ortmulti
from ortmulti import _core
from ortmulti._runtime import startup
from ortmulti.devices.provider_options import CPU, CUDA, OPTIONS, Option, check
from tests.support import onnx_models

NEWEST = "99.0.0"
TABLE = OPTIONS[CUDA]
NUMBERS = [option for option in TABLE.values() if option.kind in ("int", "pointer") and option.passed_on]


def checked(options: Mapping[Any, Any], release: str = NEWEST) -> dict[str, str]:
    return check(CUDA, options, lambda: release)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    result = tmp_path / "model.onnx"
    result.write_bytes(onnx_models.matmul())
    return result


Call = Callable[[Path, Any], object]
CALLS: dict[str, Call] = {
    "session": lambda path, options: ortmulti.InferenceSession(path, providers=[(CUDA, options)]),
    "two lists": lambda path, options: ortmulti.InferenceSession(
        path, providers=[CUDA, CPU], provider_options=[options, {}]
    ),
    "create_sessions": lambda path, options: ortmulti.create_sessions(path, "all", provider_options=options),
    "load": lambda path, options: ortmulti.load(path, "cuda:0", provider_options=options),
    "optimize": lambda path, options: ortmulti.optimize(path, provider_options=options),
}
EACH_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@EACH_CALL
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gpu_mem_limt": 1}, ortmulti.InvalidArgument, "'gpu_mem_limt' .did you mean 'gpu_mem_limit'"),
        ({"gpu_mem_limit": -1}, ortmulti.InvalidArgument, "from 0 to"),
        ({"arena_extend_strategy": "kSame"}, ortmulti.InvalidArgument, "'kNextPowerOfTwo' or 'kSameAsRequested'"),
        ({"use_tf32": "yes"}, ortmulti.InvalidArgument, "True or False"),
        ({"use_tf32": None}, ortmulti.InvalidType, "None"),
        ({3: 1}, ortmulti.InvalidType, "3"),
        ([("use_tf32", 1)], ortmulti.InvalidType, "dict"),
        ({"enable_cudnn": False}, ortmulti.NotImplemented, "enable_cudnn"),
        ({"gpu_external_alloc": 4096}, ortmulti.NotImplemented, "gpu_external_alloc"),
    ],
)
def test_every_call_refuses_alike(call: Call, path: Path, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(path, options)


@EACH_CALL
def test_a_newer_releases_option_is_refused_by_an_older_one(
    call: Call, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option of the release after the loaded one, which no table can have yet."""
    startup.ensure_open()
    major, minor = map(int, _core.onnxruntime_version().split(".")[:2])
    monkeypatch.setitem(TABLE, "of_tomorrow", Option("of_tomorrow", "bool", "0", since=(major, minor + 1)))
    message = rf"of_tomorrow.*{major}\.{minor + 1} and newer.*{major}\.{minor}"
    with pytest.raises(ortmulti.InvalidArgument, match=message):
        call(path, {"of_tomorrow": True})


@EACH_CALL
def test_what_is_right_is_not_refused_for_itself(call: Call, path: Path) -> None:
    """Without a GPU the call fails, of course, but for the provider or the device."""
    options = {"use_tf32": False, "arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": 1 << 30}
    problem = ""
    try:
        call(path, options)
    except ortmulti.Error as error:
        problem = str(error)
    assert not any(name in problem for name in options)


def test_the_default_of_each_option_is_one_that_it_takes() -> None:
    defaults = {name: option.default for name, option in TABLE.items()}
    assert checked(defaults) == defaults
    assert all(name == option.name for name, option in TABLE.items())


@pytest.mark.parametrize(
    "name", [option.name for option in TABLE.values() if option.kind == "bool" and option.passed_on]
)
def test_booleans_are_spelled_as_onnxruntime_takes_them(name: str) -> None:
    value: Any
    for value in (True, 1, "1", "True", "true", np.bool_(True), np.int64(1)):
        assert checked({name: value}) == {name: "1"}
    for value in (False, 0, "0", "False", "false", np.bool_(False)):
        assert checked({name: value}) == {name: "0"}
    for value in (2, -1, "", "TRUE", "yes", " 1", "1 ", 1.0):
        with pytest.raises(ortmulti.InvalidArgument, match=name):
            checked({name: value})


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: option.name)
def test_numbers_are_within_their_bounds(option: Option) -> None:
    value: Any
    for value in (0, option.maximum, np.uint64(7), "12", "007"):
        assert checked({option.name: value})[option.name] == str(int(value))
    for value in (-1, option.maximum + 1, "-1", "", " 1", "1 ", "0x10", "+12", "1e3", "1_000", 2.0, "٣", "9" * 5000):
        with pytest.raises(ortmulti.InvalidArgument, match=option.name):
            checked({option.name: value})
    for other in (None, [1], np.zeros(2, np.int64), b"1", {}):
        with pytest.raises(ortmulti.InvalidType, match=option.name):
            checked({option.name: other})


@pytest.mark.parametrize("name", [option.name for option in TABLE.values() if option.kind == "enum"])
def test_words_are_those_of_the_enumeration(name: str) -> None:
    words = TABLE[name].words
    assert TABLE[name].default in words
    for word in words:
        assert checked({name: word}) == {name: word}
        for wrong in (word.swapcase(), f" {word}", "", 0):
            with pytest.raises(ortmulti.InvalidArgument, match=" or ".join(words).replace(" or ", "' or '")):
                checked({name: wrong})


def test_the_release_is_asked_only_where_it_matters() -> None:
    def never() -> str:
        raise AssertionError("the release was asked for")

    assert check(CUDA, {"use_tf32": 1}, never) == {"use_tf32": "1"}
    for release in ("1.28.0", "", "2.0.0"):
        assert checked({"enable_cudnn": True}, release) == {"enable_cudnn": "1"}
    for release in ("1.27.0", "1.21.1"):
        with pytest.raises(ortmulti.InvalidArgument, match=rf"enable_cudnn.*1\.28 and newer.*{release}"):
            checked({"enable_cudnn": True}, release)


@pytest.mark.parametrize("option", [option for option in TABLE.values() if not option.passed_on], ids=lambda o: o.name)
def test_what_the_c_interface_leaves_aside_has_its_default(option: Option) -> None:
    assert checked({option.name: option.default}) == {option.name: option.default}
    with pytest.raises(ortmulti.NotImplemented, match=f"{option.name}.*can only be {option.default}"):
        checked({option.name: 1 - int(option.default)})


def test_a_stream_is_announced() -> None:
    """Without it, the C interface leaves the stream aside."""
    assert checked({"user_compute_stream": 4096}) == {"user_compute_stream": "4096", "has_user_compute_stream": "1"}
    assert checked({"user_compute_stream": 0}) == {"user_compute_stream": "0"}


def test_a_name_that_is_near_none_lists_all() -> None:
    with pytest.raises(ortmulti.InvalidArgument) as caught:
        checked({"zzz": 1})
    assert "did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in TABLE)


def test_the_cpu_has_one_option_without_effect(path: Path) -> None:
    """RapidOCR gives it to every provider; onnxruntime leaves all that the CPU is given aside."""
    providers = [(CPU, {"arena_extend_strategy": "kSameAsRequested"})]
    for package in (onnxruntime, ortmulti):
        assert package.InferenceSession(path, providers=providers).get_provider_options() == {CPU: {}}
    with pytest.raises(ortmulti.InvalidArgument, match="kNextPowerOfTwo"):
        ortmulti.InferenceSession(path, providers=[(CPU, {"arena_extend_strategy": "kSame"})])
    with pytest.raises(ortmulti.InvalidArgument, match="has no option 'device_id'"):
        ortmulti.InferenceSession(path, providers=[(CPU, {"device_id": 0})])


def test_of_other_providers_names_and_values_alone() -> None:
    def check_other(options: Any) -> dict[str, str]:
        return check("NewExecutionProvider", options, lambda: NEWEST)

    spelled = {"b": "b", 3: "3", True: "1", 0.5: "0.5", Path("/tmp/x"): "/tmp/x", np.int32(4): "4"}
    for value, text in spelled.items():
        assert check_other({"a": value}) == {"a": text}
    for options in ({"a": None}, {"a": [1]}, {"a": b"x"}, {"": "x"}, {1: "x"}, "ab", None):
        with pytest.raises(ortmulti.InvalidType):
            check_other(options)


NAMES = st.one_of(st.sampled_from(sorted(TABLE)), st.text(), st.integers())
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.binary()
)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_anything_is_taken_or_refused_in_order(options: dict[Any, Any]) -> None:
    try:
        result = checked(options)
    except (ortmulti.InvalidArgument, ortmulti.NotImplemented):
        return
    assert set(result) - {"has_user_compute_stream"} <= set(options) <= set(TABLE)
    assert checked(result) == result
