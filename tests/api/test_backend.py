"""ONNX's backend interface over ortmulti's sessions, beside onnxruntime.backend of the installed release: the onnx
package's own tests, and the calls."""

from __future__ import annotations

import importlib
import inspect
import re
import unittest
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.backend.test import BackendTest

import ortmulti
from ortmulti.devices.providers import CPU, CUDA
from tests.support import onnx_backend, onnx_models
from tests.support.onnx_backend import OnnxRuntimeBackend, OnnxRuntimeBackendRep

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of what it imports from onnx
    import onnxruntime.backend.backend

PROVIDERS = {"CPU": [CPU], "CUDA": [CUDA, CPU]}
PROVIDERS["GPU"] = PROVIDERS["CUDA"]  # as onnxruntime calls its default device
# Those whose models and data come with the package; "Real" is downloaded.
KINDS = ["Node", "Simple", "PyTorchConverted", "PyTorchOperator"]
# What the onnx package's tests call a type that NumPy has not, and onnxruntime's run neither takes nor returns.
SMALL = "BFLOAT16|FLOAT8E4M3FN|FLOAT8E4M3FNUZ|FLOAT8E5M2|FLOAT8E5M2FNUZ|FLOAT8E8M0|U?INT4|U?INT2"


class Difference(NamedTuple):
    """Outcomes that differ on purpose."""

    tests: str  # their names, without the device
    theirs: str
    ours: str
    reason: str


# The first that fits counts. Those of the second half are on GPUs.
DIFFERENCES = [
    Difference(
        r"test_castlike_(no_saturate_)?\w+_to_FLOAT8E4M3FN(_expanded)?",
        "RuntimeError",
        "AssertionError",
        "ortmulti takes arrays of ml_dtypes; the result comes as uint8, as onnxruntime returns this type elsewhere",
    ),
    Difference(
        r"test_cast_e8m0_FLOAT8E8M0_to_FLOAT(16)?",
        "RuntimeError",
        "NotImplemented",
        "neither takes arrays of this type",
    ),
    Difference(
        rf"test_cast(like)?_(no_saturate_|e8m0_)?(({SMALL})_to_\w+|\w+_to_({SMALL})(_expanded)?)",
        "RuntimeError",
        "passed",
        "ortmulti takes and returns arrays of ml_dtypes",
    ),
    Difference(
        r"test_castlike_FLOAT4E2M1_to_FLOAT(_expanded)?",
        "RuntimeError",
        "passed",
        "ortmulti takes arrays of ml_dtypes",
    ),
    Difference(
        r"test_castlike_FLOAT_to_FLOAT4E2M1(_expanded)?",
        "RuntimeError",
        "AssertionError",
        "ortmulti takes arrays of ml_dtypes; the provider's kernel rounds one of the 15 numbers otherwise",
    ),
    Difference(
        r"test_castlike_FLOAT16_to_FLOAT4E2M1(_expanded)?",
        "RuntimeError",
        "NotImplemented",
        "ortmulti takes arrays of ml_dtypes; the provider has no such kernel",
    ),
    Difference(
        r"test_attention_4d_(causal_)?padded_kv_bf16",
        "RuntimeError",
        "Fail",
        "ortmulti takes arrays of ml_dtypes; the provider's kernel refuses the node",
    ),
    Difference(
        r"test_\w+_bfloat16(_\w+)?",
        "RuntimeError",
        "passed",
        "ortmulti takes and returns arrays of ml_dtypes",
    ),
    Difference(
        r"test_attention_\w+_bf16",
        "RuntimeError",
        "passed",
        "ortmulti takes and returns arrays of ml_dtypes",
    ),
    Difference(
        r"test_sequence_map_extract_shapes(_expanded)?",
        "InvalidArgument",
        "passed",
        "sequences that onnxruntime makes of its inputs fail in its operators for sequences",
    ),
    Difference(
        r"test_sequence_(map_\w+|model1)",
        "Fail",
        "passed",
        "sequences that onnxruntime makes of its inputs fail in its operators for sequences",
    ),
]


class _TheirRep:
    """Feeds arrays where the tests have NumPy's scalars, which onnxruntime refuses and ortmulti takes: what comes of
    them is then the same."""

    def __init__(self, rep: Any) -> None:
        self._rep = rep

    def run(self, inputs: list[Any]) -> list[Any]:
        return self._rep.run([np.asarray(item) if isinstance(item, np.generic) else item for item in inputs])


class Theirs(onnxruntime.backend.backend.OnnxRuntimeBackend):  # type: ignore[misc]  # it has no stubs
    """onnxruntime's backend. It names the release's device only; which providers it uses is a variable's."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return set(PROVIDERS[device]) <= set(onnxruntime.get_available_providers())

    @classmethod
    def prepare(cls, model: Any, device: Any = None, **kwargs: Any) -> Any:
        rep = super().prepare(model, device, **{"log_severity_level": 4, **kwargs})
        # It calls itself with what it made so far.
        return _TheirRep(rep) if isinstance(model, onnx.ModelProto) else rep


class Ours(OnnxRuntimeBackend):
    @classmethod
    def prepare(cls, model: Any, device: Any = None, **kwargs: Any) -> Any:
        return super().prepare(model, device, **{"log_severity_level": 4, **kwargs})


def outcomes(backend: Any, device: str, every: int) -> dict[str, tuple[str, str]]:
    """The results of every n-th test of the onnx package: "passed", "skipped" or an exception's name; and its text."""
    results = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of the tests' values
        cases = BackendTest(backend, __name__).test_cases
        for kind in KINDS:
            case = cases[f"OnnxBackend{kind}ModelTest"]
            suffix = f"_{device.lower()}"
            methods = [name for name in dir(case) if name.startswith("test_") and name.endswith(suffix)]
            for method in methods[::every]:
                name = method.removesuffix(suffix)
                try:
                    getattr(case, method)(case(method))
                    results[name] = ("passed", "")
                except unittest.SkipTest as skip:
                    results[name] = ("skipped", str(skip))
                except Exception as error:
                    results[name] = (type(error).__name__, str(error))
    return results


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7])
@pytest.mark.parametrize("device", ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)])
def test_the_onnx_packages_tests_end_as_with_onnxruntime(
    device: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(onnxruntime.get_available_providers()) - set(PROVIDERS[device])
    monkeypatch.setenv("ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS", ",".join(sorted(others)))
    theirs, ours = outcomes(Theirs, device, every), outcomes(Ours, device, every)
    assert set(theirs) == set(ours)
    assert sum(result == "passed" for result, _ in theirs.values()) > 1000 // every
    unexpected = []
    two_bits = onnxruntime.__version__.startswith("1.30.")  # which numbers them otherwise than ONNX and other releases
    for name in sorted(theirs):
        (expected, their_text), (actual, our_text) = theirs[name], ours[name]
        known = next((d for d in DIFFERENCES if re.fullmatch(d.tests, name)), None)
        differs_as_known = known is not None and (known.theirs, known.ours) == (expected, actual)
        if two_bits and "INT2" in name and (expected, actual) == ("RuntimeError", "InvalidArgument"):
            differs_as_known = True
        if expected != actual and not differs_as_known:
            unexpected.append(
                f"{name}: {expected} with onnxruntime ({their_text[:200]}), {actual} here ({our_text[:200]})"
            )
    print("\n".join(unexpected))
    assert not unexpected, f"{len(unexpected)} of {len(theirs)} tests end otherwise"


# --- The calls --------------------------------------------------------------------------------------------------------

X = np.arange(6, dtype=np.float32).reshape(2, 3)
MODEL = onnx_models.one_node("Neg", shape=["n", 3])


def negation() -> onnx.ModelProto:
    return onnx.load_from_string(MODEL)


def sources(tmp_path: Path) -> dict[str, Any]:
    """The same model as everything that `prepare` takes."""
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL)
    session = onnx_models.cpu_session(MODEL)
    return {
        "proto": negation(),
        "bytes": MODEL,
        "path": str(path),
        "session": session,
        "prepared": OnnxRuntimeBackendRep(session),
    }


@pytest.mark.parametrize("module", ["backend", "backend_rep"])
def test_names_parameters_and_defaults_are_onnxruntimes(module: str) -> None:
    theirs = importlib.import_module(f"onnxruntime.backend.{module}")
    ours = importlib.import_module(f"tests.support.onnx_backend.{module}")
    public = {name: item for name, item in vars(theirs).items() if not name.startswith("_")}
    classes = [name for name, item in public.items() if getattr(item, "__module__", "") == theirs.__name__]
    assert any(inspect.isclass(getattr(ours, name)) for name in classes)
    for name in classes:
        item = getattr(theirs, name)
        members = vars(item) if inspect.isclass(item) else {"": item}
        for member in members:
            if member.startswith("_") and member != "__init__":
                continue
            expected = getattr(item, member) if member else item
            actual = getattr(getattr(ours, name), member) if member else getattr(ours, name)
            if callable(expected):
                assert [(p.name, p.kind, p.default) for p in inspect.signature(actual).parameters.values()] == [
                    (p.name, p.kind, p.default) for p in inspect.signature(expected).parameters.values()
                ], f"{name}.{member}"
    for name in ("is_compatible", "prepare", "run", "supports_device"):
        assert callable(getattr(onnx_backend, name))


@pytest.mark.parametrize("source", ["proto", "bytes", "path", "session", "prepared"])
def test_models_in_every_form_are_prepared_and_run(source: str, tmp_path: Path) -> None:
    model = sources(tmp_path)[source]
    rep = onnx_backend.prepare(model, "CPU")
    for inputs in (X, [X]):
        [result] = rep.run(inputs)
        np.testing.assert_array_equal(result, -X)
    [result] = onnx_backend.run(model, [X], "CPU", log_severity_level=3, of_no_class=1)
    np.testing.assert_array_equal(result, -X)


def test_the_default_device_runs_the_model() -> None:
    [result] = onnx_backend.prepare(negation()).run(X)
    np.testing.assert_array_equal(result, -X)
    assert onnx_backend.is_compatible(negation())


def test_options_reach_the_session() -> None:
    rep = onnx_backend.prepare(negation(), "CPU", intra_op_num_threads=1, logid="of the test")
    options = rep._session.get_session_options()
    assert (options.intra_op_num_threads, options.logid) == (1, "of the test")


@pytest.mark.parametrize("name", ["optimized_model_filepath", "profile_file_prefix", "enable_profiling"])
def test_options_that_write_files_are_refused(name: str) -> None:
    """As by onnxruntime since one of its releases."""
    with pytest.raises(ortmulti.RuntimeException, match=name):
        onnx_backend.prepare(MODEL, "CPU", **{name: True})


def test_a_run_cannot_be_ended_by_its_own_keyword() -> None:
    with pytest.raises(ortmulti.RuntimeException, match="terminate"):
        onnx_backend.run(negation(), X, "CPU", terminate=True)


@pytest.mark.parametrize("device", ["TPU", "CPU:1", "CUDA:x", "CUDA:99", "", "cpu"])
def test_devices_that_are_not_there(device: str) -> None:
    assert not onnx_backend.supports_device(device)
    assert not onnx_backend.is_compatible(negation(), device)
    with pytest.raises(ortmulti.RuntimeException, match="no device"):
        onnx_backend.prepare(negation(), device)


@pytest.mark.gpu
def test_a_gpu_by_any_of_its_names() -> None:
    for device in ("CUDA", "GPU", "CUDA:0"):
        rep = onnx_backend.prepare(negation(), device)
        assert rep._session.device == "cuda:0"
        np.testing.assert_array_equal(rep.run(X)[0], -X)


def test_inputs_that_are_not_as_many_as_the_models() -> None:
    rep = onnx_backend.prepare(onnx_models.add_mul(3), "CPU")
    with pytest.raises(ortmulti.InvalidArgument, match=r"2 inputs.*1 value"):
        rep.run([X])
    with pytest.raises(ortmulti.RuntimeException, match="2 inputs"):
        rep.run(X)
    np.testing.assert_array_equal(rep.run([X, X])[0], X + X)


def test_models_that_are_not_valid_are_the_checkers_errors() -> None:
    model = negation()
    model.graph.node[0].op_type = ""
    for backend in (onnxruntime.backend.backend.OnnxRuntimeBackend, OnnxRuntimeBackend):
        with pytest.raises(onnx.checker.ValidationError):
            backend.prepare(model, "CPU")


def test_operator_sets_that_are_not_released_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    model = negation()
    model.opset_import.append(helper.make_opsetid("com.example", 7))
    their_backend = onnxruntime.backend.backend.OnnxRuntimeBackend
    for backend in (their_backend, OnnxRuntimeBackend):
        supported, why_not = backend.is_opset_supported(model)
        assert not supported
        assert "com.example" in why_not
        with pytest.raises(unittest.SkipTest, match=r"com\.example"):
            backend.prepare(model, "CPU")
        assert backend.is_opset_supported(negation()) == (True, "")
    monkeypatch.setattr(OnnxRuntimeBackend, "allowReleasedOpsetsOnly", False)
    assert OnnxRuntimeBackend.is_opset_supported(model) == (True, "")
    assert len(onnx_backend.run(model, X, "CPU")) == 1


@pytest.mark.parametrize(("released_only", "entry"), [(True, "1"), (False, "0")])
def test_onnxruntimes_own_check_of_operator_sets_follows(
    released_only: bool, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnnxRuntimeBackend, "allowReleasedOpsetsOnly", released_only)
    options = onnx_backend.prepare(MODEL, "CPU")._session.get_session_options()
    assert options.get_session_config_entry("session.allow_released_opsets_only") == entry


def test_nodes_are_not_run_alone() -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    for backend in (onnxruntime.backend.backend.OnnxRuntimeBackend, OnnxRuntimeBackend):
        with pytest.raises(NotImplementedError):
            backend.run_node(node, [X])
