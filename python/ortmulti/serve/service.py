"""What the protocol asks of a server, without HTTP or gRPC: one object over a `ModelRepository`."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ortmulti._core import __version__
from ortmulti.errors import (
    ClosedError,
    DeadlineExceeded,
    Error,
    InvalidArgument,
    NotFound,
    NotImplemented,
    QueueFull,
    without_folders,
)
from ortmulti.pool.pool import operators_of
from ortmulti.pool.stats import Page, add_gpu_memory, add_to
from ortmulti.serve.datatypes import Declared, array_of_bytes, array_of_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ortmulti.pool.pool import Pool
    from ortmulti.pool.stats import PoolStats
    from ortmulti.repository import ModelRepository

__all__ = [
    "Answer",
    "Defaults",
    "InferRequest",
    "InputTensor",
    "Refused",
    "Service",
    "check_no_classification",
    "check_no_shared_memory",
    "status_and_text",
]

EXTENSIONS = [
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
]
# The version of a model that has no label.
_UNNAMED = "1"
_NANOSECONDS = 10**9
_MICROSECONDS = 10**6

_T = TypeVar("_T")
# An explicit priority is at most this far from the default one.
_MOST_PRIORITY = 2**31 - 1


class InputTensor(NamedTuple):
    """An input as a client sent it: ``data`` is bytes-like in the binary form, or a sequence of values."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: Any


@dataclass
class InferRequest:
    """A request of either protocol. ``version`` is empty for any; no ``outputs``: all of the model's. ``caller`` stands
    for the connection.
    """

    model: str
    version: str = ""
    id: str = ""
    inputs: Sequence[InputTensor] = ()
    outputs: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)
    caller: str | None = None


class Answer(NamedTuple):
    """The outputs of a run, in the order asked for."""

    model: str
    version: str
    outputs: list[tuple[Declared, NDArray[Any]]]


class Refused(Exception):  # noqa: N818  # an answer, not an error of the server
    """What the protocols answer with another status than the library's error has.

    Args:
        status: HTTP's code.
        text: For the client.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Defaults(NamedTuple):
    """Of a model's requests.

    Attributes:
        timeout: Seconds, of those without a deadline; None: none.
        priority: The protocol's, of those without one.
        may_override: Whether a request may have an earlier deadline; a later one than ``timeout`` never.
        max_batch_size: Rows of a request at most; 0: any number.
    """

    timeout: float | None = None
    priority: int = 1
    may_override: bool = True
    max_batch_size: int = 0


_NO_DEFAULTS = Defaults()


class Interface:
    """A loaded model's inputs and outputs. They belong to one pool of the name."""

    def __init__(self, pool: Pool) -> None:
        self.pool, batching = pool, pool.batching
        self.joins = batching is not None
        self.batching = None if batching is None or batching.axis != 0 else batching  # of rows, as Triton's is
        self.inputs = {value.name: Declared(value) for value in pool.get_inputs()}
        initializers = pool.get_overridable_initializers()
        self.optional = {value.name: Declared(value) for value in initializers}
        self.outputs = {value.name: Declared(value) for value in pool.get_outputs()}

    @functools.cached_property
    def recurrent(self) -> bool:
        """Whether an operator is, or its model cannot be read any more."""
        operators = operators_of(self.pool)
        return operators is None or any(name.endswith(("GRU", "LSTM", "RNN")) for name in operators)

    def check_not_empty(self, feed: Mapping[str, NDArray[Any]]) -> None:
        """Refuse what ends the process: onnxruntime's recurrent operators start no run of empty inputs (1.32).

        Raises:
            InvalidArgument: An input is empty.
        """
        empty = [name for name, value in feed.items() if value.size == 0]
        if empty and self.recurrent:
            raise InvalidArgument(
                f"input '{empty[0]}' is empty (shape {list(feed[empty[0]].shape)}), which a model with LSTM, GRU or "
                "RNN, or one whose file has changed since it was loaded, does not take: send at least one element"
            )

    def rows(self, feed: Mapping[str, NDArray[Any]], most: int) -> int:
        """Return the size of a request as Triton counts it: its rows, where they are joined or ``most`` is stated."""
        if not self.batching and not most:
            return 1
        rows = [len(feed[name]) for name, declared in self.inputs.items() if declared.shape[:1] == [-1]]
        return max(rows, default=1)


class Service:
    """The protocol's calls over a repository. All may be called from any thread.

    Args:
        models: The repository.
        explicit: Whether clients may load and unload models.
        reload: Called with a name to load it, by the path and version of its newest file; default: the repository's
            own `load`.
        name: The server's, in its metadata.
    """

    def __init__(
        self,
        models: ModelRepository,
        *,
        explicit: bool = False,
        reload: Callable[[str], object] | None = None,
        name: str = "ortmulti",
    ) -> None:
        self.models = models
        self.name = name
        self.explicit = explicit
        self.ready = True
        self.refused: dict[str, str] = {}  # why a model was not loaded, by name
        self.defaults: dict[str, Defaults] = {}  # by model
        self.answers: Counter[tuple[str, str]] = Counter()  # by protocol and code
        # Answers that this object did not see, and what they count for in a model's statistics: see `Front`.
        self.other_answers: Callable[[], Mapping[tuple[str, str], int]] = dict
        self.other_counts: Callable[[str], tuple[int, int]] = lambda _name: (0, 0)
        self._reload = reload or models.load
        self._slow = ThreadPoolExecutor(4, "ortmulti-load")
        self._interfaces: dict[str, Interface] = {}
        self._last: dict[str, int] = {}
        self._inferences: Counter[str] = Counter()  # rows, of models that join them

    # Health, metrics and metadata.

    def metrics(self) -> str:
        """Return the repository's metrics and the counts of answers, for Prometheus."""
        page = Page()
        stats = self.models.stats()
        add_to(page, stats, {})
        add_gpu_memory(page, stats.devices, {})
        answers = self.answers + Counter(self.other_answers())
        counts = [({"protocol": protocol, "code": code}, count) for (protocol, code), count in answers.items()]
        page.add("serve_answers_total", "counter", "Answers, by protocol and code.", counts, {})
        return str(page)

    def is_ready(self) -> bool:
        """Whether all models that were not unloaded take requests."""
        return self.ready and all(model.state == "READY" or model.reason == "unloaded" for model in self.models.index())

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether the model takes requests."""
        return any(
            model.state == "READY" and model.name == name and version in ("", model.version or _UNNAMED)
            for model in self.models.index()
        )

    def server_metadata(self) -> dict[str, Any]:
        """Return the server's name, version and extensions."""
        return {"name": self.name, "version": __version__, "extensions": EXTENSIONS}

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return a model's inputs and outputs."""
        interface, present = self.interface(name, version)

        def described(values: Mapping[str, Declared]) -> list[dict[str, Any]]:
            return [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in values.values()]

        return {
            "name": name,
            "versions": [present],
            "platform": "onnxruntime_onnx",
            "inputs": described(interface.inputs),
            "outputs": described(interface.outputs),
        }

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """Return what Triton's model configuration would say of a model."""
        interface, _ = self.interface(name, version)
        batching = interface.batching
        most = self.defaults_of(name).max_batch_size or (batching.max_size if batching else 0)

        def described(values: Mapping[str, Declared], **more: Any) -> list[dict[str, Any]]:
            return [
                {
                    "name": one.name,
                    "data_type": one.data_type,
                    "dims": one.shape[1:] if most else one.shape,
                    "is_shape_tensor": False,
                    "is_non_linear_format_io": False,
                    **more,
                }
                for one in values.values()
            ]

        config: dict[str, Any] = {
            "name": name,
            "platform": "onnxruntime_onnx",
            "backend": "onnxruntime",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": most,
            "input": described(interface.inputs, format="FORMAT_NONE", allow_ragged_batch=False, optional=False),
            "output": described(interface.outputs, label_filename=""),
            "instance_group": [
                {
                    "name": f"{name}_{number}",
                    "kind": "KIND_GPU" if device.device.startswith("cuda:") else "KIND_CPU",
                    "count": device.sessions,
                    "gpus": [int(device.device[5:])] if device.device.startswith("cuda:") else [],
                }
                for number, device in enumerate(interface.pool.stats().devices)
            ],
            "default_model_filename": "model.onnx",
        }
        if batching is not None:
            config["dynamic_batching"] = {
                "preferred_batch_size": list(batching.sizes),
                "max_queue_delay_microseconds": int(batching.max_delay_ms * 1000),
            }
        return config

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the counts of a model, or of all that are loaded."""
        if name:
            self.interface(name, version)
        return {
            "model_stats": [
                self._statistics(model.name, model.pool)
                for model in self.models.stats().models.values()
                if name in ("", model.name)
            ]
        }

    def _statistics(self, name: str, pool: PoolStats) -> dict[str, Any]:
        def duration(count: int, seconds: float) -> dict[str, int]:
            return {"count": count, "ns": int(seconds * _NANOSECONDS)}

        devices = pool.devices
        done, failed = (sum(getattr(each, what) for each in devices) for what in ("done", "failed"))
        sums = {what: sum(getattr(each, what).sum for each in devices) for what in ("total", "queue", "copy", "run")}
        none = duration(0, 0.0)
        inferences, last = self.other_counts(name)
        return {
            "name": name,
            "version": pool.version or _UNNAMED,
            "last_inference": max(last, self._last.get(name, 0)),
            "inference_count": max(done, inferences + self._inferences[name]),
            "execution_count": sum(each.runs for each in devices),
            "inference_stats": {
                "success": duration(done, sums["total"]),
                "fail": duration(failed, 0.0),
                "queue": duration(done, sums["queue"]),
                "compute_input": duration(done, sums["copy"]),
                "compute_infer": duration(done, sums["run"]),
                "compute_output": duration(done, 0.0),
                "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": [],
        }

    # The repository.

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Return every model and its state; with ``ready`` those that take requests."""
        found = [
            {"name": model.name, "version": model.version or _UNNAMED, "state": model.state, "reason": model.reason}
            for model in self.models.index()
            if model.state == "READY" or not ready
        ]
        if not ready:
            found += [
                {"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason}
                for name, reason in self.refused.copy().items()
            ]
        return found

    async def run_slowly(self, call: Callable[..., _T], *args: Any) -> _T:
        """Run what may take minutes, such as a load, in a thread for which nothing else waits."""
        return await asyncio.get_running_loop().run_in_executor(self._slow, call, *args)

    def check_load(self, parameters: Mapping[str, Any]) -> None:
        """Refuse a load with these parameters of a request."""
        self._check_explicit()
        if parameters:
            names = ", ".join(map(repr, parameters))
            raise Refused(501, f"a model is loaded from its file alone: leave out {names:.200}")

    def load(self, name: str) -> None:
        """Load a model, or load it again."""
        self._check_explicit()
        try:
            self._reload(name)
        except NotFound:
            raise Refused(404, f"failed to load '{name}', failed to poll from model repository") from None
        except Error as error:
            raise Refused(400, f"failed to load '{name}': {without_folders(str(error))}") from error

    def unload(self, name: str) -> None:
        """Unload a model. It may be loaded again."""
        self._check_explicit()
        try:
            self.models.unload(name)
        except NotFound:
            raise Refused(404, f"failed to unload '{name}': there is no such model") from None

    def _check_explicit(self) -> None:
        if not self.explicit:
            raise Refused(
                400, "explicit model load / unload is not allowed: --model-control explicit of the server does"
            )

    # Inference.

    async def infer(self, request: InferRequest) -> Answer:
        """Run a model once."""
        defaults = self.defaults_of(request.model)
        most = defaults.max_batch_size
        timeout = _timeout(request.parameters.get("timeout"), defaults)
        priority = _priority(request.parameters.get("priority"), defaults.priority)
        while True:
            interface, version = self.interface(request.model, request.version)
            feed = _feed(interface, request)
            interface.check_not_empty(feed)
            rows = interface.rows(feed, most)
            if 0 < most < rows:
                raise InvalidArgument(
                    f"[request id: {request.id[:200] or '<id_unknown>'}] inference request batch-size must be <= "
                    f"{most} for '{request.model}'"
                )
            outputs = _outputs(interface, request)
            names = [one.name for one in outputs] if request.outputs else None
            detach = _attach(request.trace)
            try:
                values = await interface.pool.run_async(
                    names, feed, timeout=timeout, priority=priority, when_full="reject", caller=request.caller
                )
            except ClosedError:
                # Another one was loaded in its place, and takes the request that the former did not.
                if self._interfaces.get(request.model) is interface:
                    del self._interfaces[request.model]
                if self.interface(request.model, request.version)[0].pool is interface.pool:
                    raise
                continue
            finally:
                if detach is not None:
                    detach()
            self._last[request.model] = time.time_ns() // 10**6
            self._inferences[request.model] += rows
            return Answer(request.model, version, list(zip(outputs, values, strict=True)))

    def defaults_of(self, name: str) -> Defaults:
        """Return what the model's requests have."""
        return self.defaults.get(name, _NO_DEFAULTS)

    def interface(self, name: str, version: str = "") -> tuple[Interface, str]:
        """Return a loaded model's inputs and outputs, and its version.

        Raises:
            Refused: It is not loaded, or has another version.
        """
        try:
            pool = self.models[name].pool
        except NotFound:
            if name not in self.models:
                raise Refused(404, f"Request for unknown model: '{name[:200]}' is not found") from None
            raise Refused(503, f"Request for unknown model: '{name}' has no available versions") from None
        present = pool.version or _UNNAMED  # the pool's own: another one may take its place now
        if version and version != present:
            raise Refused(404, f"Request for unknown model: '{name}' version {version[:20]} is not found")
        interface = self._interfaces.get(name)
        if interface is None or interface.pool is not pool:
            interface = self._interfaces[name] = Interface(pool)
        return interface, present


def _feed(interface: Interface, request: InferRequest) -> dict[str, NDArray[Any]]:
    feed: dict[str, NDArray[Any]] = {}
    for tensor in request.inputs:
        declared = interface.inputs.get(tensor.name) or interface.optional.get(tensor.name)
        if declared is None:
            raise InvalidArgument(f"unexpected inference input '{tensor.name[:200]}' for model '{request.model}'")
        if tensor.name in feed:
            raise InvalidArgument(f"input '{tensor.name}' already exists in request")
        if tensor.datatype != declared.require_datatype():
            raise InvalidArgument(
                f"inference input '{tensor.name}' data-type is '{tensor.datatype[:20]}', but model '{request.model}' "
                f"expects '{declared.datatype}'"
            )
        if interface.joins and tensor.name in interface.optional:
            raise InvalidArgument(
                f"the initializer '{tensor.name}' cannot be sent to model '{request.model}': requests that are joined "
                "have one value of it in common"
            )
        binary = isinstance(tensor.data, bytes | memoryview)
        convert: Callable[..., NDArray[Any]] = array_of_bytes if binary else array_of_numbers
        feed[tensor.name] = convert(declared, tensor.data, tensor.shape, request.model)
    if missing := [name for name in interface.inputs if name not in feed]:
        raise InvalidArgument(
            f"expected {len(interface.inputs)} inputs but got {len(feed)} inputs for model '{request.model}'. Got "
            f"input(s) {list(feed)}, but missing required input(s) {missing}. Please provide all required input(s)."
        )
    return feed


def _outputs(interface: Interface, request: InferRequest) -> list[Declared]:
    for name in request.outputs:
        if name not in interface.outputs:
            raise InvalidArgument(f"unexpected inference output '{name[:200]}' for model '{request.model}'")
    if len(set(request.outputs)) < len(request.outputs):
        twice = next(name for name, count in Counter(request.outputs).items() if count > 1)
        raise InvalidArgument(f"output '{twice[:200]}' is requested more than once for model '{request.model}'")
    outputs = [interface.outputs[name] for name in request.outputs or interface.outputs]
    for one in outputs:
        one.require_datatype()
    return outputs


def check_no_shared_memory(parameters: Mapping[str, Any]) -> None:
    """Refuse an input or output that lies in shared memory."""
    if "shared_memory_region" in parameters:
        raise Refused(501, "shared memory is not supported: send the data with the request")


def check_no_classification(wanted: object) -> None:
    """Refuse an output of which the labels of so many classes are wanted."""
    if wanted:
        raise Refused(501, "classification is not supported: ask for the output itself")


def _timeout(given: object, defaults: Defaults) -> float | None:
    """Return seconds of the protocol's microseconds, of which 0 are none."""
    if given in (None, 0):
        return defaults.timeout
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise InvalidArgument(f"the parameter 'timeout' is an integer of microseconds, not {given!r:.50}")
    if defaults.timeout is None:
        return given / _MICROSECONDS
    return min(given / _MICROSECONDS, defaults.timeout) if defaults.may_override else defaults.timeout


def _priority(given: object, default: int) -> int:
    """Return a pool's priority, of which higher ones go first, of the protocol's, of which 1 is the highest."""
    if given in (None, 0):
        return 0
    if not isinstance(given, int) or isinstance(given, bool) or not 0 < given <= _MOST_PRIORITY:
        raise InvalidArgument(
            f"the parameter 'priority' is 1 to {_MOST_PRIORITY}, or 0 for the default, not {given!r:.50}"
        )
    return default - given


def _attach(trace: Mapping[str, str]) -> Callable[[], None] | None:
    """Make the caller's span the current one, where OpenTelemetry is in use. Returns what ends that."""
    if not trace or "opentelemetry" not in sys.modules:
        return None
    from opentelemetry import context, propagate

    token = context.attach(propagate.extract(trace))
    return lambda: context.detach(token)


def status_and_text(error: BaseException) -> tuple[int, str]:
    """Return HTTP's status of an error, as Triton answers it, and the text for the client."""
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, DeadlineExceeded):
        return 503, "Request timeout expired"
    if isinstance(error, QueueFull):
        return 503, "Exceeds maximum queue size"
    if isinstance(error, NotImplemented):
        return 501, without_folders(str(error))
    if isinstance(error, Error):
        return 400 if error.http_status == 422 else error.http_status, error.public
    return 500, "the request failed"
