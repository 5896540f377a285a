"""What `ortmulti.ray` keeps and costs: rows under killed processes, overhead, a service under load, broadcast models.

Hosts are raylets on this machine with pretended GPUs; sessions are on the CPU, but for `broadcast --devices cuda:0`.

    pip install "ortmulti[ray]"
    python -m benchmarks.ray_scaling --parts rows,overhead,serve,broadcast --json ray.json

Exit status 1 if a row or an answer is lost, doubled or wrong.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas
import pyarrow.parquet
import ray

import ortmulti
from benchmarks.servers import ROOT
from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure.rounds import Interval
from ortmulti.bench.script import Script, names, option

CLIENTS, RECONFIGURES = 64, 10


@contextmanager
def cluster(hosts: int, *, cpus: int = 2, store: int = 2 << 30) -> Iterator[Any]:
    """A head with one CPU, and hosts with 4 pretended GPUs each."""
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": store}
    )
    try:
        for _ in range(hosts):
            made.add_node(num_cpus=cpus, num_gpus=4, object_store_memory=store)
        ray.init(made.address, log_to_driver=False, logging_level="ERROR")
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def plain(model: Path, x: np.ndarray, rows: int) -> np.ndarray:
    """A loop over the onnxruntime package."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": x[at : at + rows]})[0] for at in range(0, len(x), rows)])


def width_of(model: Path) -> int:
    [x] = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"]).get_inputs()
    return int(x.shape[1])


def features(ids: np.ndarray, width: int) -> np.ndarray:
    return np.sin(ids[:, None] * np.arange(1, width + 1)).astype(np.float32)


def processes(name: str) -> list[int]:
    """Processes of this one's clusters whose title or command line begins so; others may have clusters here, too."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if (process.cmdline() or [""])[0].startswith(name):
                found.append(process.pid)
    return found


# --- Rows under killed processes --------------------------------------------------------------------------------------


def kill_both(made: Any, seconds: float, rng: random.Random, done: list[str], over: threading.Event) -> None:
    """Kill an actor and a raylet at random times of the next seconds; a host without others is replaced."""
    times = sorted((rng.uniform(0.1, 0.9) * seconds, what) for what in ("actor", "raylet"))
    begin = time.monotonic()
    for at, what in times:
        over.wait(max(0.0, begin + at - time.monotonic()))
        while not (actors := processes("ray::MapWorker(MapBatches(Predictor))")) and not over.wait(0.05):
            pass  # the last one has just been killed
        if over.is_set():
            return
        if what == "actor":
            with suppress(ProcessLookupError):
                os.kill(rng.choice(actors), signal.SIGKILL)
        else:
            node = rng.choice(sorted(made.worker_nodes, key=lambda each: each.node_id))
            [raylet] = node.all_processes["raylet"]
            os.kill(raylet.process.pid, signal.SIGKILL)
            made.worker_nodes.remove(node)
            if not made.worker_nodes:
                made.add_node(num_cpus=2, num_gpus=4, object_store_memory=2 << 30, wait=False)
        done.append(f"{what} after {time.monotonic() - begin:.1f} s")


def columns(table: Any) -> dict[str, np.ndarray]:
    """The columns of a table as arrays."""
    y = table["y"].combine_chunks()
    return {"id": table["id"].to_numpy(), "y": y.to_numpy_ndarray()}


def measure_rows(directory: Path, rows: int, seed: int) -> dict[str, Any]:
    model = models.make("matmul", directory, megabytes=1)
    width, each = width_of(model), 500
    expected = plain(model, features(np.arange(rows), width), each)
    report: dict[str, Any] = {"rows": rows, "wrong": 0}
    rng = random.Random(seed)
    for hosts in (1, 2, 4):
        seconds = 0.0
        for killed in (False, True):
            with cluster(hosts) as made:
                dataset = ray.data.range(rows, override_num_blocks=100).map_batches(
                    lambda batch: {"id": batch["id"], "x": features(batch["id"], width)}, batch_size=None
                )
                options = ortmulti.ray.map_options(model, rows=each, gpus=4, devices="cpu", keep_columns=["id"])
                done: list[str] = []
                over = threading.Event()
                batches: list[dict[str, np.ndarray]] = []

                def score(scored: Any, target: Path | None, batches: list[Any], over: threading.Event) -> None:
                    try:
                        if target is None:
                            batches += scored.iter_batches(batch_size=None)
                        else:  # the job ends when the rows are in files: until then Ray makes lost blocks again
                            scored.write_parquet(str(target))
                    finally:
                        over.set()

                begin = time.perf_counter()
                target = directory / f"{hosts}-hosts" if killed else None
                scored = dataset.map_batches(ortmulti.ray.Predictor, **options)
                job = threading.Thread(target=score, args=(scored, target, batches, over))
                job.start()
                if killed:
                    kill_both(made, seconds, rng, done, over)  # in the main thread, which can add hosts
                job.join()
                seconds = time.perf_counter() - begin
            if target is not None:
                batches = [columns(pyarrow.parquet.read_table(file)) for file in target.glob("*.parquet")]
            ids, answers = ([batch[name] for batch in batches] for name in ("id", "y"))
            order = np.concatenate(ids)
            counts = np.bincount(order, minlength=rows)
            got = np.concatenate(answers)
            found = {
                "seconds": seconds,
                "killed": done,
                "lost": int((counts == 0).sum()),
                "doubled": int((counts > 1).sum()),
                "in order": None if killed else bool((np.diff(order) > 0).all()),
                "other bits": int((got != expected[order]).any(axis=1).sum()),
            }
            report[f"{hosts} hosts{', killed' * killed}"] = found
            report["wrong"] += found["lost"] + found["doubled"] + found["other bits"]
            print(f"{hosts} hosts: {found}", flush=True)
    return report


# --- Overhead ---------------------------------------------------------------------------------------------------------


class Timed(ortmulti.ray.Predictor):
    """Adds when each batch began and ended."""

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        begin = time.monotonic()
        result = super().__call__(batch)
        count = len(batch["id"])
        return {"begin": np.full(count, begin), "end": np.full(count, time.monotonic()), "y": result["y"]}


class ByHand:
    """What one writes over onnxruntime: a session with one thread, and runs of `rows` rows."""

    def __init__(self, model: str, rows: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._rows = rows

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        begin, x = time.monotonic(), batch["x"]
        parts = [self._session.run(["y"], {"x": x[at : at + self._rows]})[0] for at in range(0, len(x), self._rows)]
        return {
            "begin": np.full(len(x), begin),
            "end": np.full(len(x), time.monotonic()),
            "y": np.concatenate(parts),
        }


def measure_overhead(directory: Path, rows: int, rounds: int) -> dict[str, Any]:
    model = models.make("matmul", directory, megabytes=8)
    width, each = width_of(model), 32
    ids = np.arange(rows)
    x = features(ids, width)
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = 1
    found: dict[str, list[float]] = {"pool": [], "actor": [], "by hand": [], "batch": []}
    with cluster(1) as _, ortmulti.load(model, "cpu", options=options) as pool:
        blocks = 32
        parts = [{"id": part} for part in np.split(ids, blocks)]
        dataset = ray.data.from_pandas([pandas.DataFrame(part) for part in parts])
        dataset = dataset.map_batches(
            lambda batch: {"id": batch["id"], "x": features(batch["id"], width)}, batch_size=None
        ).materialize()
        given = ortmulti.ray.map_options(model, rows=each, gpus=4, cpus=1, devices="cpu", hosts=1)
        hand = {
            "fn_constructor_args": (str(model), each),
            "compute": ray.data.ActorPoolStrategy(size=1),
            "batch_size": given["batch_size"],
            "num_cpus": 1,
        }

        def score(scorer: Any, options: dict[str, Any], expected: np.ndarray) -> tuple[float, float]:
            """Return the seconds from the first batch's begin to the last one's end, and the median batch's."""
            batches = list(dataset.map_batches(scorer, **options).iter_batches(batch_size=None))
            times = np.unique(np.concatenate([np.stack([b["begin"], b["end"]], 1) for b in batches]), axis=0)
            if not (np.concatenate([b["y"] for b in batches]) == expected).all():
                raise RuntimeError("the outputs differ")
            return float(times[:, 1].max() - times[:, 0].min()), float(np.median(times[:, 1] - times[:, 0]))

        for _ in range(rounds):
            begin = time.perf_counter()
            [expected] = pool.map_rows({"x": x}, rows=each)
            found["pool"].append(time.perf_counter() - begin)
            seconds, batch = score(Timed, given, expected)
            found["actor"].append(seconds)
            found["batch"].append(batch)
            found["by hand"].append(score(ByHand, hand, expected)[0])
            print({name: round(values[-1], 3) for name, values in found.items()}, flush=True)
    over = Interval.json(actor / alone for actor, alone in zip(found["actor"], found["pool"], strict=True))
    return {
        "rows": rows,
        "rows of a batch": given["batch_size"],
        "seconds": found,
        "actor over pool": over,
        "actor over by hand": float(np.median(np.divide(found["actor"], found["by hand"]))),
    }


# --- A service under load ---------------------------------------------------------------------------------------------


def application(arguments: dict[str, str]) -> Any:
    """What Serve imports."""
    made = ortmulti.ray.deployment(arguments["model"], gpus=4, devices="cpu", batching=ortmulti.Batching(16))
    return made.options(logging_config={"enable_access_log": False}).bind()


def measure_serve(directory: Path, requests: int) -> dict[str, Any]:
    from ray import serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    both = [models.make("matmul", directory / str(seed), megabytes=1, seed=seed) for seed in (0, 1)]
    x = features(np.arange(1, 2), width_of(both[0]))
    # A joint run may give other bits than a run of one row.
    expected = [plain(model, x, 1) for model in both]
    if np.allclose(*expected):
        raise RuntimeError("the two models have the same answer")
    latencies: list[float] = []
    counts = {"of the first model": 0, "of the second model": 0, "wrong": 0, "late": 0, "failed": 0}
    replaced: list[float] = []
    with cluster(1):
        serve.start()
        client = _get_global_client()

        def deploy(version: int) -> None:
            config = {"name": "ortmulti", "user_config": {"model": str(both[version % 2]), "version": str(version)}}
            client.deploy_apps(
                ServeDeploySchema.model_validate(
                    {
                        "applications": [
                            {
                                "import_path": "benchmarks.ray_scaling:application",
                                "args": {"model": str(both[0])},
                                "route_prefix": None,
                                "deployments": [config],
                            }
                        ]
                    }
                ),
                _blocking=True,
            )

        deploy(0)
        before = processes("ray::ServeReplica:default:ortmulti")
        handle = serve.get_app_handle("default")
        current: list[int | None] = [0]  # the model of all requests sent from now on; None while it is replaced

        async def ask(numbers: Iterator[int]) -> None:
            for _ in numbers:
                since, begin = current[0], time.perf_counter()
                try:
                    y = (await handle.infer.remote({"x": x}))["y"]
                except Exception as error:
                    counts["failed"] += 1
                    print(f"failed: {error!r}", flush=True)
                    continue
                latencies.append(time.perf_counter() - begin)
                near = [bool(np.allclose(y, each, rtol=1e-4, atol=1e-5)) for each in expected]
                if sum(near) != 1:
                    counts["wrong"] += 1
                    continue
                counts["of the second model" if near[1] else "of the first model"] += 1
                counts["late"] += since is not None and current[0] == since and not near[since]

        async def replace() -> None:
            for version in range(1, RECONFIGURES + 1):
                while len(latencies) < version * requests / (RECONFIGURES + 1):
                    await asyncio.sleep(0.01)
                current[0], begin = None, time.perf_counter()
                await asyncio.to_thread(deploy, version)
                while not np.allclose((await handle.infer.remote({"x": x}))["y"], expected[version % 2], rtol=1e-4):
                    pass
                replaced.append(time.perf_counter() - begin)
                current[0] = version % 2

        async def all_of_it() -> None:
            numbers = iter(range(requests))
            await asyncio.gather(*(ask(numbers) for _ in range(CLIENTS)), replace())

        begin = time.perf_counter()
        asyncio.run(all_of_it())
        seconds = time.perf_counter() - begin
        after = processes("ray::ServeReplica:default:ortmulti")
        serve.shutdown()
    return {
        "requests": requests,
        "clients": CLIENTS,
        "answers": counts,
        "answers a second": requests / seconds,
        "p50 in ms": float(np.percentile(latencies, 50)) * 1000,
        "p99 in ms": float(np.percentile(latencies, 99)) * 1000,
        "seconds of each reconfigure": replaced,
        "same process": before == after,
        "wrong": counts["wrong"] + counts["late"] + counts["failed"] + (requests - len(latencies) - counts["failed"]),
    }


# --- A model that is read once ----------------------------------------------------------------------------------------


class Holder:
    """An actor that loads a model and says what that took."""

    def load(self, model: Any, devices: str) -> dict[str, float]:
        before = _memory()
        begin = time.perf_counter()
        # Has arrived.
        kept = ray.get(ray.get(model._object)[1]) if isinstance(model, ortmulti.ray.BroadcastModel) else None
        arrived = time.perf_counter()
        self.pool = ortmulti.ray.load_here(model, devices)
        x = features(np.arange(1, 2), int(self.pool.get_inputs()[0].shape[1]))
        [self.y] = self.pool.run({"x": x})
        ready = time.perf_counter()
        after = _memory()
        del kept
        return {
            "seconds to arrive": arrived - begin,
            "seconds to load": ready - arrived,
            "peak bytes": after["VmHWM"] - before["VmRSS"],
            "own bytes": after["RssAnon"] - before["RssAnon"],
            "shared bytes": after["RssShmem"] - before["RssShmem"],
        }

    def answer(self) -> np.ndarray:
        return self.y


def _memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}


def _bytes_read() -> int:
    """What this process had the kernel fetch from disks, through mapped files too."""
    return int(next(line.split()[1] for line in Path("/proc/self/io").open() if line.startswith("read_bytes")))


def measure_broadcast(directory: Path, megabytes: int, devices: str, rounds: int) -> dict[str, Any]:
    small = models.make("matmul", directory / "small", megabytes=1)
    model = models.make("matmul", directory / "large", megabytes=megabytes)
    hidden = directory / "hidden"
    files = [model, Path(f"{model}.data")]
    size = sum(file.stat().st_size for file in files)
    os.environ["ORTMULTI_CACHE"] = str(directory / "cache")  # actors have it too
    with ortmulti.load(model, devices) as pool:
        [expected] = pool.run({"x": features(np.arange(1, 2), width_of(model))})
    report: dict[str, Any] = {"bytes of the model": size, "devices": devices, "wrong": 0}
    found: dict[str, list[dict[str, float]]] = {"small model": [], "from files": [], "from the object store": []}
    with cluster(2, store=3 * size):
        actor = ray.remote(num_gpus=4, num_cpus=1)(Holder)

        def load(name: str, given: Any, right: np.ndarray | None = None) -> None:
            """In new processes, on one host after the other."""
            for each in [actor.remote() for _ in range(2)]:
                found[name].append(ray.get(each.load.remote(given, devices)))
                report["wrong"] += right is not None and not np.array_equal(ray.get(each.answer.remote()), right)
                ray.kill(each)

        for file in files:
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before, begin = _bytes_read(), time.perf_counter()
        given = ortmulti.ray.broadcast(model)
        report["seconds to broadcast, from the disk"] = time.perf_counter() - begin
        report["bytes read from the disk"] = _bytes_read() - before
        for _ in range(rounds):
            load("small model", str(small))
            load("from files", str(model), expected)
            model.parent.rename(hidden)  # hosts cannot read them
            load("from the object store", given, expected)
            hidden.rename(model.parent)
    report |= found
    median = {
        name: {key: float(np.median([each[key] for each in loads])) for key in loads[0]}
        for name, loads in found.items()
    }
    report["medians"] = median
    stored, local = median["from the object store"], median["from files"]
    report["copies in a host's memory"] = (stored["peak bytes"] - median["small model"]["peak bytes"]) / size
    report["load over load from files"] = stored["seconds to load"] / local["seconds to load"]
    return report


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One part, in this process."""
    directory = Path(spec["folder"], spec["case"])
    directory.mkdir()
    if spec["case"] == "rows":
        return measure_rows(directory, spec["given"], spec["seed"])
    if spec["case"] == "overhead":
        return measure_overhead(directory, spec["scored"], spec["rounds_of_each"])
    if spec["case"] == "serve":
        return measure_serve(directory, spec["requests"])
    return measure_broadcast(directory, spec["megabytes"], spec["devices"], spec["rounds_of_each"])


@dataclass
class RayScaling(Script[str]):
    """The options of the command line."""

    kind, timeout = "Ray", 7200.0
    parts: tuple[str, ...] = option(("rows", "overhead", "serve", "broadcast"), "parts", names)
    given: int = option(1_000_000, "rows of the part rows")
    scored: int = option(65_536, "rows of the part overhead")
    rounds_of_each: int = option(5, "of overhead and broadcast")
    requests: int = option(100_000, "to the service")
    megabytes: int = option(1000, "of the broadcast model")
    devices: str = option("cpu", "of the broadcast model")
    seed: int = option(0, "of the times of kills")

    def cases(self, number: int = 0) -> Sequence[str]:
        return self.parts

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._folder = folder

    def measure(self, case: str, number: int) -> dict[str, Any]:
        return {"ray": ray.__version__, **self.fresh({"case": case, "folder": str(self._folder)})}

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        wrong = measurement.get("wrong", 0)
        return [*super().complaints(measurement), *([f"{wrong} rows or answers are wrong"] if wrong else [])]


if __name__ == "__main__":
    sys.exit(script.main(RayScaling))
