"""What is a floating type, every value of the small ones, and how they round."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortmulti.values import floats

# (bits of the exponent, of the mantissa, bias, what follows the largest finite numbers)
SMALL = {
    "bfloat16": (8, 7, 127, "infinity"),
    "float8_e4m3fn": (4, 3, 7, "one nan"),
    "float8_e4m3fnuz": (4, 3, 8, "no negative zero"),
    "float8_e5m2": (5, 2, 15, "infinity"),
    "float8_e5m2fnuz": (5, 2, 16, "no negative zero"),
}


def value_of(bits: int, exponent_bits: int, mantissa_bits: int, bias: int, special: str) -> float:
    """By the types' definition."""
    mantissa, exponent = bits % 2**mantissa_bits, (bits >> mantissa_bits) % 2**exponent_bits
    negative = bits >> (exponent_bits + mantissa_bits)
    last = exponent == 2**exponent_bits - 1
    if special == "no negative zero" and negative and not mantissa and not exponent:
        return math.nan
    if special == "one nan" and last and mantissa == 2**mantissa_bits - 1:
        return math.nan
    if special == "infinity" and last:
        value = math.nan if mantissa else math.inf
    elif exponent:
        value = math.ldexp(1 + mantissa / 2**mantissa_bits, exponent - bias)
    else:
        value = math.ldexp(mantissa / 2**mantissa_bits, 1 - bias)
    return -value if negative else value


@pytest.mark.parametrize("name", SMALL)
def test_every_value_of_a_small_float_is_converted(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    bits = np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}")
    found = floats.as_float64(bits.view(dtype))
    expected = np.array([value_of(int(one), *SMALL[name]) for one in bits])
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float64


ROUNDING: list[tuple[Any, float]] = [
    *((getattr(ml_dtypes, name), 2.0 ** -SMALL[name][1]) for name in SMALL),
    *((dtype, float(np.finfo(dtype).eps)) for dtype in (np.float16, np.float32, np.float64)),
    (">f4", 2.0**-23),
]


@pytest.mark.parametrize(("dtype", "distance"), ROUNDING)
def test_the_rounding_of_a_type_is_the_distance_of_the_next_number(dtype: Any, distance: float) -> None:
    assert floats.is_floating(np.dtype(dtype))
    assert floats.rounding(np.dtype(dtype)) == distance


@pytest.mark.parametrize("dtype", ["i8", "u1", "?", "O", "U3", "S3", "V2", "c16", [("float", "f4")], ml_dtypes.int4])
def test_other_types_are_not_floating(dtype: Any) -> None:
    assert not floats.is_floating(np.dtype(dtype))


def test_bytes_of_a_declared_float_are_floats() -> None:
    bits = np.arange(256, dtype=np.uint8)
    found = floats.of_type(bits, "tensor(float8e4m3fn)")
    assert found.dtype == ml_dtypes.float8_e4m3fn
    assert found.tobytes() == bits.tobytes()
    assert floats.of_type(bits, "tensor(uint8)") is bits
    assert floats.of_type(["a"], "tensor(float8e4m3fn)") == ["a"]


def test_without_ml_dtypes_bytes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    bits = np.arange(4, dtype=np.uint8)
    assert floats.of_type(bits, "tensor(float8e4m3fn)") is bits
    assert floats.dtype_of("tensor(bfloat16)") is None
    assert floats.dtype_of("tensor(float)") == np.float32


@pytest.mark.parametrize(
    ("declared", "dtype"),
    [
        ("tensor(float16)", np.float16),
        ("tensor(double)", np.float64),
        ("tensor(bfloat16)", ml_dtypes.bfloat16),
        *((f"tensor({name.replace('8_', '8')})", getattr(ml_dtypes, name)) for name in SMALL if name != "bfloat16"),
        ("tensor(int64)", None),
        ("tensor(string)", None),
        ("seq(tensor(float))", None),
    ],
)
def test_a_declared_type_has_a_dtype(declared: str, dtype: Any) -> None:
    assert floats.dtype_of(declared) == (None if dtype is None else np.dtype(dtype))
