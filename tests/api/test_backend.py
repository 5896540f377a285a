"""The onnx package's own tests, through onnxruntime's backend over its own sessions and over ortmulti's."""

from __future__ import annotations

import importlib.util
import re
import unittest
import warnings
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.backend.test import BackendTest

import ortmulti
from ortmulti.devices.providers import CPU, CUDA

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
        rf"test_cast(like)?_(no_saturate_|e8m0_)?(({SMALL})_to_\w+|\w+_to_({SMALL})(_expanded)?)",
        "RuntimeError",
        "passed",
        "ortmulti takes and returns arrays of ml_dtypes",
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
        r"test_\w+_bfloat16(_\w+)?|test_attention_\w+_bf16|test_castlike_FLOAT4E2M1_to_FLOAT(_expanded)?",
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


def backend(*, ortmultis: bool) -> Any:
    """onnxruntime's backend, imported anew: it takes the names of the classes at its import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what it imports from onnx
        spec: Any = importlib.util.find_spec("onnxruntime.backend.backend")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

    class Backend(module.OnnxRuntimeBackend):  # type: ignore[misc, name-defined]  # it has no stubs
        """It names the release's device only; which providers it uses is a variable's."""

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return set(PROVIDERS[device]) <= set(onnxruntime.get_available_providers())

        @classmethod
        def prepare(cls, model: Any, device: Any = None, **kwargs: Any) -> Any:
            rep = super().prepare(model, device, **{"log_severity_level": 4, **kwargs})
            if not isinstance(model, onnx.ModelProto):  # it calls itself with what it made so far
                return rep
            assert isinstance(rep._session, ortmulti.InferenceSession) == ortmultis
            return rep if ortmultis else _TheirRep(rep)

    return Backend


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
    theirs = outcomes(backend(ortmultis=False), device, every)
    with ortmulti.patch_onnxruntime():
        ours = outcomes(backend(ortmultis=True), device, every)
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
