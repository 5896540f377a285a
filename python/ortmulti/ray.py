"""Adapter to Ray: one actor on each host, with all of its GPUs.

`Predictor` and `map_options` are for Ray Data, `deployment` for Ray Serve, and `load_here` for actors of your own.
`broadcast` reads a model once for the cluster. Ray does the rest: placement, restarts, routing and scaling. This module
needs the extra: ``pip install "ortmulti[ray]"``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortmulti import _core, checks
from ortmulti._runtime import startup
from ortmulti.create.model import Model
from ortmulti.devices.device import Device, name_devices, parse_devices
from ortmulti.errors import DeviceError, Error, InvalidArgument, InvalidProtobuf, InvalidType, LibraryError
from ortmulti.options.foreign_options import to_session_options
from ortmulti.options.session_options import SessionOptions
from ortmulti.pool.configuration import Batching
from ortmulti.pool.load import load

try:
    import ray
except ImportError as error:
    raise LibraryError(f'ortmulti.ray needs Ray ({error}): pip install "ortmulti[ray]"', name="ray") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ray import serve

    from ortmulti.create.model import ModelLike
    from ortmulti.pool.pool import Pool

__all__ = ["BroadcastModel", "Predictor", "broadcast", "deployment", "load_here", "map_options"]

LOGGER = logging.getLogger("ortmulti")

# Weights are read and put into the object store in parts of this size or of one larger weight.
_PART_BYTES = 64 << 20


@dataclass(frozen=True)
class BroadcastModel:
    """A model in Ray's object store, as `broadcast` returns it. It can be sent to other processes of the cluster.

    Attributes:
        path: The model's absolute path. Hosts read this file if the object is lost.
        size: Bytes of the weights in the object store.
    """

    path: str
    size: int
    _object: ray.ObjectRef = field(repr=False)


def broadcast(model: str | os.PathLike[str]) -> BroadcastModel:
    """Read a model once, and put it into Ray's object store for all hosts of the cluster.

    Hosts get it from each other. Sessions take the weights from the object store's shared memory, without a copy on
    disk. The object lives as long as the calling process, which is connected to Ray, or starts it. It must fit into the
    object store of each host; otherwise Ray writes it to disk. Beside it, the calling process needs memory for 64 MiB
    or for the largest weight.

    Args:
        model: Path of a model, with or without external data. Or its URL in an object store, such as
            ``s3://bucket/model.onnx``: it is read once for the cluster.

    Returns:
        The model, for `load_here`, `Predictor`, `map_options` and `deployment`.

    Raises:
        NoSuchFile, Fail, WeightsError: A file of the model is missing, is too short, cannot be read, or was changed
            meanwhile.
        InvalidArgument: External data is not of the main graph's initializers: ONNX Runtime takes no value for it. Or
            it does not have the bytes that the weight's type and shape need.
        InvalidProtobuf: The file is not an ONNX model.
    """
    text = checks.text("model", model)
    of = Model(text if "://" in text else Path(text).absolute())
    graph, weights, sources = (bytes(of.graph), of.external.weights, of.external.sources) if of.url else _outside(of)
    # Files are read, not mapped: a mapped file that shrinks would end the process.
    prefetch = _core.Prefetch([(file, 0, file.size) for file in dict.fromkeys(sources)] if of.path else [])
    objects: list[ray.ObjectRef] = []
    size = 0
    for part in _parts(weights):
        listed = _core.WeightList(sources, part)
        if of.url:
            listed = listed.read()  # several ranges at a time
        values = {
            each.name: (each.data_type, each.shape, listed.sources[each.source].read(each.offset, each.length))
            for each in listed.weights
        }
        objects.append(ray.put(values))
        size += sum(each.length for each in part)
    for file in sources:
        file.check()
    del prefetch
    return BroadcastModel(of.path or of.url, size, ray.put((graph, objects)))


def _parts(weights: list[_core.Weight]) -> Iterator[list[_core.Weight]]:
    """Yield weights that make an object together."""
    part: list[_core.Weight] = []
    for each in weights:
        part.append(each)
        if sum(one.length for one in part) >= _PART_BYTES:
            yield part
            part = []
    if part:
        yield part


def _outside(of: Model) -> tuple[bytes, list[_core.Weight], list[_core.Source]]:
    """Return the graph of a file, its weights, and the files that they are in."""
    path = of.path
    try:
        graph, _, listed = _core.put_weights_outside(path)
        graph = graph or listed.sources[0].read(0, listed.sources[0].size).tobytes()
        index = _core.index_model(graph)
    except InvalidProtobuf as error:
        raise InvalidProtobuf(f"{path!r}: {error}") from None
    found = zip(index.external_locations, _core.external_files(index, of.folder, path), strict=True)
    first = {file.name: file for file in listed.sources}  # a file that was replaced since then is an error
    files = {os.fsdecode(location): first.get(file.name, file) for location, file in found}
    try:
        return graph, Model(graph, files).external.weights, list(files.values())
    except InvalidArgument as error:
        raise InvalidArgument(f"the model cannot be broadcast: {error}; or use weights='files'") from None


def load_here(
    model: ModelLike | BroadcastModel,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    *,
    options: SessionOptions | None = None,
    **arguments: Any,
) -> Pool:
    """Load a model in a Ray actor or task, on the GPUs that Ray has assigned to it.

    Args:
        model: As for `load`, or a `BroadcastModel`. Its weights of 1 MiB or more are used in place on the CPU, and are
            shared by all sessions of a GPU. Those that ONNX Runtime's optimizations read, and smaller ones, are copied
            for each session.
        devices: Default ``"all"``: the GPUs that Ray has assigned, also if Ray does not set ``CUDA_VISIBLE_DEVICES``.
            On a host without NVIDIA GPUs: the CPU. Otherwise as for `load`.
        options: As for `load`. Default ``intra_op_num_threads`` on the CPU: the CPUs that Ray has assigned, at least 1.
        arguments: The other arguments of `load`.

    Returns:
        The pool.

    Raises:
        DeviceError: Ray has assigned no GPU, and the host has GPUs. Or this process does not see the assigned ones.
        InvalidArgument: This process is no actor or task of Ray.
        Error: As `load`.
    """
    if not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        raise InvalidArgument("load_here runs in a Ray actor or task: elsewhere call ortmulti.load")
    named = name_devices(devices)
    if named is None:
        named = parse_devices(_assigned_devices())
    changed = SessionOptions()
    if (given := to_session_options(options)) is not None:
        changed._core = given._core.copy()
    if changed.intra_op_num_threads == 0 and all(device.kind == "cpu" for device in named):
        # Ray limits no thread: without this, each actor would take all cores of the host.
        changed.intra_op_num_threads = max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    if isinstance(model, BroadcastModel):
        model = _from_object_store(model)
    return load(model, named, options=changed, **arguments)


def _assigned_devices() -> str | list[str]:
    """Return the devices that Ray has assigned to this process, by their numbers in CUDA."""
    assigned = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = startup.device_count()
    if not assigned:
        if found := count or startup.hidden_gpus():
            raise DeviceError(
                f"Ray has assigned no GPU to this actor, and the host has {found}: give the actor num_gpus, or load "
                "with devices='cpu'"
            )
        return "cpu"
    # Ray's ids are entries of the variable; without the variable they are CUDA's numbers.
    names = [str(index) for index in range(count)] if visible is None else [id.strip() for id in visible.split(",")]
    if len(names) != count or not set(assigned) <= set(names):
        raise DeviceError(
            f"Ray has assigned {len(assigned)} GPUs to this actor (ids {', '.join(sorted(assigned))}), and CUDA sees "
            f"{count} GPUs (CUDA_VISIBLE_DEVICES={visible!r}): check num_gpus of the node, start CUDA after the "
            "actor's constructor has begun, or load with devices='cpu'"
        )
    return [f"cuda:{index}" for index in sorted(map(names.index, assigned))]


def _from_object_store(model: BroadcastModel) -> Model:
    """Return the model over the object; over the file if the object is lost."""
    try:
        graph: bytes
        graph, parts = ray.get(model._object)
        weights = {name: weight for part in ray.get(parts) for name, weight in part.items()}
    except (ray.exceptions.ObjectLostError, ray.exceptions.OwnerDiedError) as error:
        LOGGER.warning("the broadcast model is lost, its file %s is read instead: %s", model.path, error)
        return Model.of(model.path)
    found = Model(graph)
    found.external = _core.WeightList(
        [_core.memory_source(name, data) for name, (_, _, data) in weights.items()],
        [
            _core.Weight(name, data_type, shape, file, 0, data.nbytes)
            for file, (name, (data_type, shape, data)) in enumerate(weights.items())
        ],
    )
    return found


def _exit_if_lost(pool: Pool) -> None:
    """End the process if no device is left: Ray restarts the actor, and a new process can use the GPUs again."""
    if not pool.closed and all(device.state not in ("ready", "starting") for device in pool.stats().devices):
        reasons = "; ".join(f"{device.device}: {device.broken}" for device in pool.stats().devices)
        LOGGER.critical("no device of the pool is left, so this process ends for Ray to restart it: %s", reasons)
        logging.shutdown()
        os._exit(1)


class Predictor:
    """The model as a class for `map_batches` of Ray Data. `map_options` has the options that fit.

    A batch is cut into runs that fill all GPUs of the actor. Inputs are read where Ray's object store has them. Errors
    of a run are raised to Ray. If the last device breaks, the process ends: Ray restarts the actor and tries the batch
    again.

    Args:
        model: As for `load_here`.
        inputs: The column of each input of the model, such as ``{"x": "pixels"}``. Default: an input's own name.
        outputs: Names of the outputs wanted, which are columns of the result; default: all.
        keep_columns: Columns of the batch that the result has too, unchanged; default: none.
        rows: Rows of each run, 1 or more; default: found while it runs, as for `Pool.map_rows`.
        load: Arguments of `load_here`.

    Raises:
        InvalidArgument: A name is no input or output of the model, or a column to keep has the name of an output.
        Error: As `load_here`.
    """

    def __init__(
        self,
        model: ModelLike | BroadcastModel,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Sequence[str] | None = None,
        keep_columns: Sequence[str] = (),
        rows: int | None = None,
        **load: Any,
    ) -> None:
        checks.instance("inputs", inputs, Mapping, optional=True)
        self._keep = checks.sequence("keep_columns", keep_columns)
        self._rows = rows
        self._pool = load_here(model, **load)
        names = [each.name for each in self._pool.get_outputs()]
        self._outputs = names if outputs is None else checks.sequence("outputs", outputs)
        self._columns = {each.name: each.name for each in self._pool.get_inputs()}
        _check_known("inputs", "input of the model", inputs or (), self._columns)
        _check_known("outputs", "output of the model", self._outputs, names)
        if both := set(self._keep) & set(self._outputs):
            raise InvalidArgument(f"the column {min(both)!r} of keep_columns is also an output: rename the column")
        self._columns.update(inputs or {})

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the model on the rows of a batch.

        Args:
            batch: Arrays ``[n, ...]`` by column, of the inputs' dtypes; read-only arrays are used in place. Columns of
                lists (dtype object) are joined to one array before.

        Returns:
            An array ``[n, ...]`` for each output and each column to keep.

        Raises:
            InvalidArgument: A column is missing.
            InvalidType: Lists of an input's column have different lengths.
            Error: As `Pool.map_rows`.
        """
        for cure, columns in (
            ("name the column of each input, such as inputs={'x': 'pixels'}", self._columns.values()),
            ("keep_columns names columns of the dataset", self._keep),
        ):
            for column in columns:
                if column not in batch:
                    found = ", ".join(map(repr, batch))
                    raise InvalidArgument(f"the batch has no column {column!r}, it has {found}: {cure}")
        feed = {name: _array(column, batch[column]) for name, column in self._columns.items()}
        try:
            answers = self._pool.map_rows(self._outputs, feed, rows=self._rows)
        except Error:
            _exit_if_lost(self._pool)
            raise
        return {column: batch[column] for column in self._keep} | dict(zip(self._outputs, answers, strict=True))


def _array(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """Return a column as an array: Ray has columns of lists, as Parquet files have them, as arrays of arrays."""
    if column.dtype != object or not len(column) or not isinstance(column[0], np.ndarray | list):
        return column
    try:
        return np.stack(list(column))
    except ValueError:
        raise InvalidType(f"the lists of the column {name!r} have different lengths: pad them before") from None


def _check_known(argument: str, what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in (found := list(known)):
            raise InvalidArgument(f"{argument}: {name!r} is no {what}, only {', '.join(map(repr, found))}")


def _check_arguments(given: Iterable[str], function: Any) -> None:
    """Refuse what neither this function nor `load` takes: in the actors the reason would be hard to find."""
    known = inspect.signature(function).parameters | inspect.signature(load).parameters
    if unknown := sorted(set(given) - known.keys()):
        raise TypeError(f"there is no argument {unknown[0]!r}")


def map_options(
    model: str | os.PathLike[str] | BroadcastModel,
    *,
    rows: int = 32,
    hosts: int | None = None,
    gpus: int | float | Literal["all"] = "all",
    cpus: int | float | None = None,
    weights: Literal["files", "broadcast"] = "files",
    **predictor: Any,
) -> dict[str, Any]:
    """Return the options of `map_batches` for a `Predictor`: an actor for each host, with all of its GPUs.

    A batch fills all GPUs of a host, and two batches overlap: ``ds.map_batches(Predictor, **map_options(model))``.

    Args:
        model: Path of a model that all hosts can read, or a `BroadcastModel`.
        rows: Rows of each run; default 32. A batch has enough of them for all requests that GPUs take at a time.
        hosts: Most actors; default: hosts of the cluster now. More than these begin when hosts join.
        gpus, cpus: What Ray reserves for each actor. Default ``"all"``: the GPUs of a host of the cluster; on hosts
            without GPUs, or if ``devices`` are named, 0. Default CPUs: 1, or without GPUs all CPUs of a host but one.
            If hosts have different numbers of CPUs, the smallest counts, and a warning says so.
        weights: ``"files"``, the default: each host reads the model's files. ``"broadcast"``: this process reads
            them now, as `broadcast` does.
        predictor: Other arguments of `Predictor`, and of `load_here`.

    Returns:
        The arguments ``compute``, ``batch_size``, ``num_gpus``, ``num_cpus``, ``fn_constructor_args`` and
        ``fn_constructor_kwargs``.

    Raises:
        InvalidArgument: Hosts of the cluster have different numbers of GPUs, or a value cannot be.
        TypeError: Neither `Predictor` nor `load` has such an argument.
        NoSuchFile: There is no such model, with ``weights="broadcast"``.
    """
    from ray.data import ActorPoolStrategy

    checks.integer("rows", rows, 1)
    _check_arguments(predictor, Predictor)
    found, resources = _resources(gpus, cpus, predictor)
    size = found if hosts is None else checks.integer("hosts", hosts, 1)
    # Not a fixed size: Ray then goes on with the other hosts if one is lost.
    compute = ActorPoolStrategy(
        min_size=1,
        max_size=size,
        initial_size=min(size, found),
        max_concurrent_calls_per_actor=2,
        enable_true_multi_threading=True,
    )
    return {
        "compute": compute,
        "batch_size": rows * _requests_at_once(resources, predictor),
        **resources,
        "fn_constructor_args": (_weights(model, weights),),
        "fn_constructor_kwargs": {"rows": rows, **predictor},
    }


def _weights(model: str | os.PathLike[str] | BroadcastModel, weights: str) -> str | BroadcastModel:
    checks.choice("weights", weights, ("files", "broadcast"))
    if isinstance(model, BroadcastModel):
        return model
    return broadcast(model) if weights == "broadcast" else checks.text("model", model)


def _requests_at_once(resources: Mapping[str, Any], load: Mapping[str, Any]) -> int:
    """How many requests the sessions of one actor have under way at most, as `load`'s arguments say."""
    in_flight = load.get("in_flight", "auto")
    each = 1 if resources["num_gpus"] == 0 else _core.max_in_flight if in_flight == "auto" else in_flight
    sessions = checks.integer("sessions_per_device", load.get("sessions_per_device", 1), 1)
    return max(1, int(resources["num_gpus"])) * sessions * int(each)


def _resources(
    gpus: int | float | Literal["all"], cpus: int | float | None, load: Mapping[str, Any]
) -> tuple[int, dict[str, float]]:
    """Return how many hosts there are, and what Ray is to reserve for the actor of each."""
    if not ray.is_initialized():
        ray.init()  # as functions of Ray do
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if gpus == "all":
        named = load.get("devices", "all") != "all"
        gpus = 0 if named else _on_each_host("gpus", "GPU", nodes)
    checks.number("gpus", gpus)
    if cpus is None and gpus == 0:
        cpus = max(1, _on_each_host("cpus", "CPU", nodes) - 1)  # one is left for the tasks that read
    wanted = {"GPU": gpus, "CPU": 1 if cpus is None else checks.number("cpus", cpus)}
    hosts = sum(all(node.get(name, 0) >= count for name, count in wanted.items()) for node in nodes)
    if not hosts:
        most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in wanted}
        LOGGER.warning(
            "no host of the cluster has %g GPUs and %g CPUs for an actor (at most %g and %g): Ray waits for one",
            *wanted.values(),
            *most.values(),
        )
    return max(1, hosts), {"num_gpus": gpus} | ({} if cpus is None else {"num_cpus": cpus})


def _on_each_host(argument: str, resource: str, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how much of a resource each host has that has any; 0 if none has. Of CPUs, it is the smallest number."""
    counts = Counter(int(node[resource]) for node in nodes if node.get(resource, 0) >= 1)
    if len(counts) > 1:
        found = ", ".join(f"{hosts} with {count}" for count, hosts in sorted(counts.items()))
        differ = f"hosts of the cluster have different numbers of {argument} ({found})"
        if resource == "GPU":
            raise InvalidArgument(f"{differ}: give {argument}=")
        # A head has fewer nearly always.
        LOGGER.warning("%s: actors are sized for hosts with %d; give %s= to change it", differ, min(counts), argument)
    return min(counts, default=0)


class _Replica:
    """A replica of `deployment`."""

    def __init__(self, model: str | BroadcastModel, arguments: Mapping[str, Any], most: int) -> None:
        self._pool = load_here(model, **arguments)
        self._most = most
        self._model = model
        self._version = arguments.get("version", "")

    async def infer(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        try:
            answers = await self._pool.run_async(outputs, inputs, timeout=timeout)
        except Error:
            _exit_if_lost(self._pool)
            raise
        names = outputs or [each.name for each in self._pool.get_outputs()]
        return dict(zip(names, answers, strict=True))

    async def stream(
        self,
        feeds: Iterable[Mapping[str, Any]],
        outputs: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        pending: deque[asyncio.Task[dict[str, Any]]] = deque()
        try:
            for feed in feeds:
                pending.append(asyncio.create_task(self.infer(feed, outputs, timeout)))
                if len(pending) == self._most:
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()

    async def reconfigure(self, config: Mapping[str, Any]) -> None:
        checks.instance("user_config", config, Mapping)
        _check_known("user_config", "key", config, ("model", "version"))
        model, version = config.get("model"), config.get("version", "")
        if model is None:
            raise InvalidArgument("user_config has no 'model': name the path of a model")
        if (model, version) == (self._model, self._version):
            return  # Serve calls this after the constructor, too
        await asyncio.to_thread(self._pool.replace_model, model, version=version)
        self._model, self._version = model, version

    def check_health(self) -> None:
        states = {device.device: device.state for device in self._pool.stats().devices}
        if self._pool.closed or not {"ready", "starting"} & set(states.values()):
            raise DeviceError(f"no device of the pool takes requests: {states}")

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()


def deployment(
    model: str | os.PathLike[str] | BroadcastModel,
    *,
    name: str = "ortmulti",
    gpus: int | float | Literal["all"] = "all",
    cpus: int | float | None = None,
    weights: Literal["files", "broadcast"] = "files",
    autoscaling_config: Mapping[str, Any] | None = None,
    **load: Any,
) -> serve.Deployment:
    """Return a Ray Serve deployment of a model: each replica is one host with all of its GPUs.

    Call it through a handle. ``await handle.infer.remote({"x": x})`` returns the outputs, a dict of their names and
    arrays; ``outputs=`` and ``timeout=`` are those of `Pool.run_async`. ``handle.options(stream=True).stream.remote([
    {"x": x}, ...])`` yields them for each of several inputs, in order.

    A new ``user_config={"model": path, "version": "2"}`` replaces the model of running replicas under load, without
    a further host (`Pool.replace_model`). A replica whose last device breaks ends, and Serve starts another one.

    Args:
        model: Path of a model that all hosts can read, or a `BroadcastModel`.
        name: Name of the deployment; default ``"ortmulti"``.
        gpus, cpus, weights: As for `map_options`.
        autoscaling_config: As Serve's. Its default ``target_ongoing_requests`` fills all GPUs of a replica.
        load: Other arguments of `load_here`.

    Returns:
        The deployment, for ``.bind()``. Its ``max_ongoing_requests`` is twice what the sessions run at a time, with
        batching in full batches. ``.options(...)`` changes it.

    Raises:
        Error, TypeError: As `map_options`.
    """
    from ray import serve

    _check_arguments(load, load_here)
    _, resources = _resources(gpus, cpus, load)
    batching = load.get("batching")
    batch = batching.max_size if isinstance(batching, Batching) else 1
    most = 2 * _requests_at_once(resources, load) * batch
    options: dict[str, Any] = {"name": name, "ray_actor_options": resources, "max_ongoing_requests": most}
    if autoscaling_config is not None:
        options["autoscaling_config"] = {"target_ongoing_requests": most // 2, **autoscaling_config}
    given = _weights(model, weights)

    class Replica(_Replica):
        def __init__(self) -> None:
            super().__init__(given, load, most)

    return serve.deployment(**options)(Replica)
