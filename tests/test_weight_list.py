"""Which weights of a model can be shared, and where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortmulti import _core

FLOATS = 256
"""Of float32: 1024 bytes, the least that is shared."""


def weight(name: str, size: int = FLOATS, seed: int = 0) -> TensorProto:
    return numpy_helper.from_array(np.random.default_rng(seed).standard_normal(size, dtype=np.float32), name)


def external(name: str, size: int = FLOATS, **entries: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[size], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def graph(*initializers: TensorProto, nodes: Any = (), inputs: Any = (), name: str = "graph") -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), [], list(initializers))


def save(path: Path, *initializers: TensorProto, ir_version: int = 8, **kwargs: Any) -> str:
    model = helper.make_model(graph(*initializers, **kwargs), ir_version=ir_version)
    path.write_bytes(model.SerializeToString())
    return str(path)


def names(weights: _core.WeightList) -> list[str]:
    return [name for name, *_ in weights.weights]


def read(weights: _core.WeightList) -> dict[str, bytes]:
    """Every weight's bytes as the list says where they lie."""
    found = {}
    for name, _, _, file, offset, length in weights.weights:
        with Path(weights.files[file][0]).open("rb") as data:
            data.seek(offset)
            found[name] = data.read(length)
    return found


def test_inline_and_external_weights_are_listed_with_their_files(tmp_path: Path) -> None:
    inline = weight("inline", seed=1)
    data = [weight("a", seed=2).raw_data, weight("b", seed=3).raw_data]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"xyz" + b"".join(data))
    path = save(
        tmp_path / "model.onnx",
        external("a", location="sub/w.bin", offset="3"),
        inline,
        external("b", location="./sub/w.bin", offset="1027", length="1024"),
    )

    found = _core.shareable_weights(path)

    assert read(found) == {"a": data[0], "inline": inline.raw_data, "b": data[1]}
    assert [tuple(w[:3]) for w in found.weights] == [(n, TensorProto.FLOAT, [FLOATS]) for n in ("a", "inline", "b")]
    assert found.left_out == []
    assert sorted(found.files) == sorted(
        (str(p.resolve()), p.stat().st_size, p.stat().st_ino, p.stat().st_mtime_ns)
        for p in (Path(path), tmp_path / "sub" / "w.bin")
    )
