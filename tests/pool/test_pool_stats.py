"""What a pool says of its work."""

from __future__ import annotations

import itertools
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from tests.support import onnx_models

X = {"x": np.zeros((2, 64), np.float32)}


def test_counts_and_times() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu", 2) as pool:
        for _ in range(10):
            pool.run(None, X)
        pool.submit(None, X).result()
        with pytest.raises(ortmulti.InvalidArgument):
            pool.run(None, {"x": np.zeros((2, 2, 2), np.float32)})
    stats = pool.stats()
    [device] = stats.devices
    assert (device.device, device.sessions, device.busy, device.waiting) == ("cpu", 2, 0, 0)
    assert (device.done, device.failed, device.cancelled, device.retried, device.runs) == (11, 1, 0, 0, 12)
    assert (device.broken, device.suspended) == ("", "")
    assert (stats.waiting, stats.rejected, stats.cancelled_waiting, stats.failed_waiting) == (0, 0, 0, 0)
    assert (stats.unbatched, stats.why_unbatched) == (0, "")
    assert (stats.unlike, stats.why_unlike) == (0, "")
    for times in (device.queue, device.run, device.total):
        assert times.count == 12
        assert 0 <= times.p50 <= times.p95 <= times.p99 <= times.p999 <= times.max <= times.sum
        assert times.mean == times.sum / 12
        assert all(below <= above for (_, below), (_, above) in itertools.pairwise(times.buckets))
        assert times.buckets[-1] == (10.0, 12)
    assert device.total.sum == pytest.approx(device.queue.sum + device.run.sum, rel=1e-6)
    assert stats.throughput == 11 / stats.seconds


def test_what_is_printed_of_statistics_leaves_out_buckets_and_nothing_that_happened() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu") as pool:
        for _ in range(3):
            pool.run(None, X)
    stats = pool.stats()
    text = repr(stats)
    assert text.startswith(
        "PoolStats(devices=[DeviceStats(device='cpu', sessions=1, done=3, runs=3, queue=Latency(count=3"
    )
    assert f"p99={stats.devices[0].total.p99:.3g}" in text
    assert not re.search(r"buckets|copy|failed|broken|None|=0[,)]|=''", text)
    assert len(text) < 600


def test_prometheus_has_each_metric_once_and_its_labels() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu") as pool:
        pool.run(None, X)
        text = pool.stats().prometheus({"model": 'a "quoted"\\ name\n'})
    names = re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.M)
    assert len(names) == len({name for name, _ in names}) >= 9
    for line in text.splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r'(\w+)\{model="a \\"quoted\\"\\\\ name\\n"(,\w+="[^"]*")*\} (\S+)', line)
            assert match is not None, line
            float(match[3])
            base = match[1].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
            assert base in {name for name, _ in names} or match[1] in {name for name, _ in names}
    assert 'ortmulti_requests_total{model="a \\"quoted\\"\\\\ name\\n",device="cpu",outcome="done"} 1\n' in text
    with ortmulti.load(onnx_models.matmul(), "cpu") as pool:
        text = pool.stats().prometheus()
        [device] = pool.stats().devices
    assert (device.memory_used, device.memory_total) == (None, None)
    assert "ortmulti_memory_used_bytes{" not in text
    assert "ortmulti_gpu_memory_bytes{" not in ortmulti.metrics({"pool": pool})
    assert "ortmulti_waiting 0\n" in text
    assert 'ortmulti_device_state{device="cpu",state="ready"} 1\n' in text
    for name in ("device_suspended", "device_asleep", "sleeps_total"):
        assert f'ortmulti_{name}{{device="cpu"}} 0\n' in text


def test_prometheus_has_histograms_that_can_be_added() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu", batching=ortmulti.Batching(4, 60_000)) as pool:
        for future in [pool.submit(None, X) for _ in range(4)]:
            future.result()
        stats = pool.stats()
    text = stats.prometheus()
    for name in ("queue_seconds", "copy_seconds", "run_seconds", "total_seconds", "wake_seconds", "batch_size"):
        buckets = re.findall(rf'^ortmulti_{name}_bucket{{device="cpu",le="(\S+)"}} (\d+)$', text, re.M)
        bounds = [float(bound) for bound, _ in buckets]
        counts = [int(count) for _, count in buckets]
        assert bounds == sorted(set(bounds))
        assert counts == sorted(counts)
        assert (buckets[-1][0], float(counts[-1])) == ("+Inf", _value(text, f"{name}_count"))
    assert "quantile=" not in text
    assert stats.devices[0].batch_size == ortmulti.Histogram(
        2, 4.0, ((1, 0), *((2**power, 2) for power in range(1, 11)))
    )
    assert 'ortmulti_batch_size_bucket{device="cpu",le="1"} 0\n' in text
    assert 'ortmulti_batch_size_bucket{device="cpu",le="2"} 2\n' in text
    assert _value(text, "total_seconds_sum") == stats.devices[0].total.sum


def test_the_version_of_the_model_is_a_label() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu", loading=ortmulti.Loading(version="1")) as pool:
        assert pool.stats().version == "1"
        assert '\nortmulti_model_info{version="1"} 1\n' in pool.stats().prometheus()
        assert '\nortmulti_model_info{model="m",version="1"} 1\n' in pool.stats().prometheus({"model": "m"})
        pool.replace_model(onnx_models.matmul(), version="2")
        assert '\nortmulti_model_info{version="2"} 1\n' in pool.stats().prometheus()
        pool.replace_model(onnx_models.matmul())
        assert "model_info" not in pool.stats().prometheus()


def _value(text: str, name: str) -> float:
    match = re.search(rf'^ortmulti_{name}{{device="cpu"}} (\S+)$', text, re.M)
    assert match is not None, name
    return float(match[1])


def test_a_page_of_several_pools_and_repositories(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_models.matmul())
    x = {"x": np.ones((1, 64), np.float32)}
    with (
        ortmulti.load(tmp_path / "m.onnx", "cpu", loading=ortmulti.Loading(version="7")) as one,
        ortmulti.load(tmp_path / "m.onnx", "cpu") as other,
        ortmulti.ModelRepository("cpu") as repository,
        ortmulti.ModelRepository("cpu") as empty,
    ):
        repository.add("m", tmp_path / "m.onnx")
        one.run(x)
        repository.run("m", x)
        sources = {"one": one, "other": other, "models": repository, "empty": empty}
        page = ortmulti.metrics(sources, {"service": "search"})
    lines = page.splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(set(names)) == len(names)
    assert len(set(series)) == len(series)
    assert all('service="search",pool="' in line for line in series)
    # Each line is below its metric's names.
    name = ""
    for line in lines:
        if line.startswith("# TYPE"):
            name = line.split()[2]
        elif not line.startswith("#"):
            assert re.match(rf"{name}(_bucket|_sum|_count)?{{", line)
    done = 'ortmulti_requests_total{service="search",pool="%s",%sdevice="cpu",outcome="done"} %d'
    for expected in (("one", "", 1), ("other", "", 0), ("models", 'model="m",', 1)):
        assert done % expected in lines
    assert "# TYPE ortmulti_repository_budget_bytes gauge" in lines


def test_latencies_are_counted_up_to_bounds_of_the_users_own() -> None:
    with ortmulti.ModelRepository("cpu") as models:
        models.add("m", onnx_models.matmul())
        models.run("m", {"x": np.ones((1, 64), np.float32)})
        pool = models["m"]
        assert [bound for bound, _ in pool.stats([2e-6, 3600]).devices[0].run.buckets] == [2e-6, 3600]
        assert [count for _, count in models.stats([1e-9, 60]).models["m"].pool.devices[0].run.buckets] == [0, 1]
        default = [bound for bound, _ in pool.stats().devices[0].run.buckets]
        assert (len(default), default[:4], default[-2:]) == (19, [1e-5, 2.5e-5, 5e-5, 1e-4], [5, 10])
        page = ortmulti.metrics({"all": models}, latency_buckets=[0.01234567, 60])
        assert re.search(r'ortmulti_run_seconds_bucket\{.*le="0\.01234567"\} ', page)
        for buckets, error, message in (
            ([], ortmulti.InvalidArgument, r"seconds above 0, ascending, not \[\]"),
            ([0, 1], ortmulti.InvalidArgument, "seconds above 0"),
            ([2, 1], ortmulti.InvalidArgument, "ascending"),
            (["1"], ortmulti.InvalidType, "latency_buckets is a number"),
            (3, ortmulti.InvalidType, "a list of seconds, not 3"),
        ):
            with pytest.raises(error, match=message):
                pool.stats(buckets)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ("mlp", ortmulti.errors.InvalidType, "labels are a mapping"),
        ({"device": "x"}, ortmulti.InvalidArgument, "'device' is the metrics' own"),
        ({"a b": "x"}, ortmulti.InvalidArgument, "no label's name"),
        ({"__name__": "x"}, ortmulti.InvalidArgument, "no label's name"),
        ({"shard": 1}, ortmulti.errors.InvalidType, "a name and a text"),
    ],
)
def test_labels_that_cannot_be_are_refused(labels: Any, error: type[Exception], message: str) -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu") as pool, ortmulti.ModelRepository("cpu") as repository:
        for call in (pool.stats().prometheus, repository.stats().prometheus, partial(ortmulti.metrics, {"a": pool})):
            with pytest.raises(error, match=message):
                call(labels)
        with pytest.raises(ortmulti.InvalidArgument, match="'model' is the metrics' own"):
            repository.stats().prometheus({"model": "x"})
        for sources in (pool, {"a": 3}, [pool]):
            with pytest.raises(ortmulti.errors.InvalidType, match="pool"):
                ortmulti.metrics(sources)
