"""Sessions on GPUs that share their weights: their outputs, their memory, and loads that fail."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from ortmulti import _core
from ortmulti._runtime.libraries import release_of
from ortmulti.bench import models
from ortmulti.create.sample_inputs import sample_inputs
from tests.support import onnx_models
from tests.support.gpus import CUDA, VISIBLE, check_memory_returns, needs_gpus
from tests.support.optimized_models import PROTOS, same_bits, write
from tests.support.processes import check_child

pytestmark = pytest.mark.gpu

# The default search measures, and may choose differently each time.
OPTIONS = {"cudnn_conv_algo_search": "HEURISTIC"}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMULTI_CACHE", str(tmp_path / "cache"))


def ordinary(model: str | bytes, feeds: dict[str, Any]) -> list[Any]:
    onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(model, providers=[(CUDA, OPTIONS)])
    assert session.get_providers()[0] == CUDA
    outputs = dict(zip((output.name for output in session.get_outputs()), session.run(None, feeds), strict=True))
    # An output that is an input may be zeros (1.30.0, 1.31.1): it goes to the GPU and back on streams of their own.
    return [feeds.get(name, output) for name, output in outputs.items()]


def check_outputs(model: str | bytes, feeds: dict[str, Any]) -> None:
    expected = ordinary(model, feeds)
    for source in ("made", "found"):
        with ortmulti.load(model, "all", 2, provider_options=OPTIONS) as pool:
            assert pool.timeline.not_shared == [], source
            assert len(pool.sessions) == 2 * _core.cuda_device_count()
            for session in pool.sessions:
                assert same_bits(session.run(None, feeds), expected), (source, session.device)


@pytest.mark.parametrize("how", ["external", "inline", "bytes"])
@pytest.mark.parametrize("name", PROTOS)
def test_outputs_are_onnxruntimes_bit_for_bit(tmp_path: Path, name: str, how: str) -> None:
    model = write(tmp_path / "model", PROTOS[name](), how)
    source = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = sample_inputs(source.get_inputs(), 3)
    if name == "with_if" and release_of(ortmulti.get_version_string()) < (1, 24):
        try:
            ordinary(model, feeds)
        except RuntimeError as error:
            pytest.skip(f"onnxruntime {onnxruntime.__version__} cannot load it: {error}")
    check_outputs(model, feeds)
    if "c" in feeds:
        feeds["c"] = np.array(~feeds["c"])
        check_outputs(model, feeds)


@pytest.mark.parametrize(("name", "arguments"), [("resnet50", {}), ("phi3-mini", {"layers": 1})])
def test_the_measured_models_outputs_are_onnxruntimes(tmp_path: Path, name: str, arguments: dict[str, Any]) -> None:
    model = models.make(name, tmp_path, **arguments)
    check_outputs(str(model), dict(models.sample_inputs(model)))


def test_a_model_as_it_is_shares_its_weights(tmp_path: Path) -> None:
    model, _ = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(size=256, layers=4))
    options = ortmulti.SessionOptions()
    options.graph_optimization_level = ortmulti.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = {"x": np.ones((3, 256), np.float32)}
    with (
        ortmulti.load(model, 0, 2, loading=ortmulti.Loading(optimize="never")) as pool,
        ortmulti.create_sessions(model, 0, options=options, loading=ortmulti.Loading(strategy="native")) as plain,
    ):
        assert pool.timeline.not_shared == []
        assert [session._core.weight_use() for session in pool.sessions] == [(4, []), (4, [])]
        expected = plain[0].run(None, feeds)
        for session in pool.sessions:
            assert same_bits(session.run(None, feeds), expected)


def test_offline_takes_what_was_made_before(tmp_path: Path) -> None:
    model, _ = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(size=256))
    with pytest.raises(ortmulti.NotFound, match="ortmulti optimize"):
        ortmulti.load(model, 0, loading=ortmulti.Loading(optimize="offline"))
    ortmulti.load(model, 0).close()
    with ortmulti.load(model, 0, loading=ortmulti.Loading(optimize="offline")) as pool:
        assert not any(span.name == "optimize model" for span in pool.timeline.spans)


@pytest.mark.gpu_memory
def test_memory_comes_back(tmp_path: Path) -> None:
    model = models.make("matmul", tmp_path, megabytes=512)
    check_memory_returns(lambda: ortmulti.load(model, "all", 2).close(), rounds=3)


@pytest.mark.gpu_memory
def test_four_sessions_hold_the_weights_once(tmp_path: Path) -> None:
    model = models.make("matmul", tmp_path, megabytes=512)
    ortmulti.load(model, 0).close()
    before = _core.cuda_memory(0)[0]
    with ortmulti.load(model, 0, 4) as pool:
        # Each has handles of cuBLAS besides, with 64 MiB of workspace.
        assert before - _core.cuda_memory(0)[0] < (2 * 512 + 4 * 64) << 20
        pool.sessions[0].close()
        feeds = models.sample_inputs(model)
        assert pool.sessions[3].run(None, feeds)[0].size > 0


@pytest.mark.gpu_memory
def test_a_weights_file_that_is_too_short_is_one_error(tmp_path: Path) -> None:
    model, data = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(size=256))
    ortmulti.load(model, 0).close()
    os.truncate(data, data.stat().st_size // 2)
    free = _core.cuda_memory(0)[0]
    with pytest.raises(ortmulti.Error):
        ortmulti.load(model, "all")
    assert _core.cuda_memory(0)[0] > free - (64 << 20)


@pytest.mark.gpu_memory
def test_a_full_last_gpu_is_named_and_nothing_stays(tmp_path: Path) -> None:
    needs_gpus(2)
    model = models.make("matmul", tmp_path, megabytes=512)
    printed = check_child(
        """
        import sys
        import ortmulti
        from ortmulti import _core
        from tests.support.gpus import fill

        model = sys.argv[1]
        last = _core.cuda_device_count() - 1
        ortmulti.load(model, 0).close()
        fill(last, 256 << 20)
        before = _core.cuda_memory(0)[0]
        try:
            ortmulti.load(model, "all")
        except ortmulti.OutOfMemory as error:
            print(f"cuda:{last}" in str(error), "free of" in str(error))
        while _core.cuda_memory(0)[0] < before - (64 << 20):
            pass  # the thread of the session that was still being created frees it
        """,
        model,
        environment={**VISIBLE, "ORTMULTI_CACHE": str(tmp_path / "cache")},
    )
    assert printed.splitlines() == ["True True"]


@pytest.mark.gpu_memory
def test_an_interrupt_half_way_frees_everything(tmp_path: Path) -> None:
    model = models.make("matmul", tmp_path, megabytes=512)
    printed = check_child(
        """
        import sys, time
        import ortmulti
        from ortmulti import _core

        ortmulti.load(sys.argv[1], "all").close()
        before = [_core.cuda_memory(i)[0] for i in range(_core.cuda_device_count())]

        def interrupt(progress):
            raise KeyboardInterrupt

        try:
            ortmulti.load(sys.argv[1], "all", 2, loading=ortmulti.Loading(progress=interrupt))
        except KeyboardInterrupt:
            print("interrupted")
        ortmulti.load(sys.argv[1], "all").close()
        after = [_core.cuda_memory(i)[0] for i in range(_core.cuda_device_count())]
        print(all(left > had - (64 << 20) for had, left in zip(before, after)))
        """,
        model,
        environment={**VISIBLE, "ORTMULTI_CACHE": str(tmp_path / "cache")},
    )
    assert printed.splitlines() == ["interrupted", "True"]


def test_several_models_load_at_once(tmp_path: Path) -> None:
    paths = [
        onnx_models.write_external(tmp_path / str(seed), onnx_models.matmul_proto(size=512, layers=4, seed=seed))[0]
        for seed in range(4)
    ]
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 512)).astype(np.float32)}
    expected = [ordinary(str(path), feeds) for path in paths]
    with ThreadPoolExecutor(8) as threads:
        pools = list(threads.map(lambda path: ortmulti.load(path, "all"), paths * 2))
    for pool, wanted in zip(pools, expected * 2, strict=True):
        with pool:
            assert all(same_bits(session.run(None, feeds), wanted) for session in pool.sessions)


def test_several_processes_make_one_entry(tmp_path: Path) -> None:
    model, _ = onnx_models.write_external(tmp_path / "model", onnx_models.matmul_proto(size=512, layers=4))
    code = """
        import sys
        import numpy as np
        import ortmulti

        with ortmulti.load(sys.argv[1], 0) as pool:
            x = np.ones((2, 512), np.float32)
            print(pool.timeline.not_shared, pool.sessions[0].run(None, {"x": x})[0].tobytes().hex())
    """
    environment = {**VISIBLE, "ORTMULTI_CACHE": str(tmp_path / "cache")}
    with ThreadPoolExecutor(4) as threads:
        printed = set(threads.map(lambda _: check_child(code, model, environment=environment, timeout=200), range(4)))
    [one] = printed
    assert one.startswith("[] ")
    assert len(list((tmp_path / "cache" / "entries").iterdir())) == 1
