"""The comparison of programs that are switched from onnxruntime, and the one program that needs no other library.

Those of other libraries: tools/test_switching.sh.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.switching.__main__ import LIBRARIES, check, problems
from tests.switching.compare import count, differences

ARRAY = np.array([1.0, np.nan, -0.0], np.float32)
WORDS = np.array(["a", "b"], object)
RAN = {"sessions": 1, "runs": 2}


@pytest.mark.parametrize(
    "result", [ARRAY, ARRAY[:0], WORDS, {"a": [ARRAY, 1.5], "b": (None, "x")}, float("nan"), np.float32(2), True]
)
def test_equal_results_have_no_differences(result: Any) -> None:
    assert list(differences(result, result)) == []


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        (ARRAY, np.array([1.0, np.nan, 0.0], np.float32), "1 of 3 float32 differ, by 0 at most"),
        (ARRAY, ARRAY + np.float32(1), "2 of 3 float32 differ, by 1 at most"),
        (ARRAY, ARRAY.astype(np.float64), "float32"),
        (ARRAY, ARRAY.reshape(1, 3), "(1, 3)"),
        (ARRAY, ARRAY.tolist(), "ndarray and list"),
        (WORDS, np.array(["a", "c"], object), "'b' and 'c'"),
        (0.0, -0.0, "0.0 and -0.0"),
        ({"a": 1}, {"b": 1}, "keys"),
        ([1, 2], [1], "2 and 1 items"),
        ([{"a": [1, 2]}], [{"a": [1, 3]}], "result[0]['a'][1]: 2 and 3"),
        (1, True, "int and bool"),
        (b"ab", b"ac", "b'ab'"),
    ],
)
def test_differences_are_named(expected: Any, found: Any, said: str) -> None:
    [difference] = differences(expected, found)
    assert said in difference


def test_what_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(TypeError, match="object"):
        list(differences(object(), object()))


def test_values_are_counted() -> None:
    assert count({"a": [ARRAY, 1.5], "b": (None, "x")}) == 6


@pytest.mark.parametrize(
    ("theirs", "found", "said"),
    [
        ({}, {"theirs": {}, "ours": {}}, "no session was made and run"),
        (RAN, {"theirs": RAN, "ours": {}}, "sessions of onnxruntime were made"),
        (RAN, {"theirs": {}, "ours": {"sessions": 1, "runs": 1}}, "of ortmulti's"),
    ],
)
def test_a_program_that_was_not_switched_is_noticed(theirs: Any, found: Any, said: str) -> None:
    expected = {"outputs": [1], "theirs": theirs, "ours": {}}
    assert said in "\n".join(problems("shim", expected, {"outputs": [1], **found}))


def test_onnxruntimes_own_tools_switch() -> None:
    pytest.importorskip("onnxruntime.quantization", reason="this release needs sympy for it", exc_type=ImportError)
    [library] = [library for library in LIBRARIES if library.distribution == "onnxruntime"]
    seen, wrong = check(library)
    assert wrong == []
    assert "4 sessions, 32 runs" in seen
