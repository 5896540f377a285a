"""What the protocol asks of a server, without HTTP or gRPC: one object over a `ModelRepository`."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ortmulti import _core
from ortmulti._core import __version__
from ortmulti.errors import Error, NotFound, without_folders
from ortmulti.pool.pool import operators_of
from ortmulti.pool.stats import Page, add_gpu_memory, add_to
from ortmulti.serve.text_models import TextModels

if TYPE_CHECKING:
    from ortmulti.pool.pool import Pool
    from ortmulti.pool.stats import PoolStats
    from ortmulti.repository import ModelRepository

__all__ = ["Declared", "Defaults", "Refused", "Service", "status_and_text"]

LOGGER = logging.getLogger("ortmulti.serve")

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

_T = TypeVar("_T")


class Refused(Exception):  # noqa: N818  # an answer, not an error of the server
    """What the protocols answer with another status than the library's error has.

    Args:
        status: HTTP's code.
        text: For the client.
        headers: Of the answer over HTTP, beside the others.
    """

    def __init__(self, status: int, text: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


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


class Declared:
    """An input or output as the protocol names it.

    Attributes:
        name: Its name.
        datatype: The protocol's word for the type of its elements, such as ``"FP32"``; "" where it has none.
        shape: Its dimensions, -1 for any size.
    """

    __slots__ = ("datatype", "name", "shape")

    def __init__(self, value: _core.NodeArg) -> None:
        self.name = value.name
        kind = _core.element_types.get(value.type)
        self.datatype = "" if kind is None else kind.protocol
        self.shape = [size if isinstance(size, int) else -1 for size in value.shape]

    @property
    def data_type(self) -> str:
        """Triton's word for the datatype in a model's configuration."""
        return "TYPE_" + ("STRING" if self.datatype == "BYTES" else self.datatype or "INVALID")


class Interface:
    """A loaded model's inputs and outputs. They belong to one pool of the name."""

    def __init__(self, pool: Pool) -> None:
        self.pool, batching = pool, pool.batching
        self.joins = batching is not None
        self.batching = None if batching is None or batching.axis != 0 else batching  # of rows, as Triton's is
        self.inputs = [Declared(value) for value in pool.get_inputs()]
        self.outputs = [Declared(value) for value in pool.get_outputs()]

    @functools.cached_property
    def recurrent(self) -> bool:
        """Whether an operator is, or its model cannot be read any more: onnxruntime's recurrent operators end the
        process where an input is empty (1.32).
        """
        operators = operators_of(self.pool)
        return operators is None or any(name.endswith(("GRU", "LSTM", "RNN")) for name in operators)


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
        self.refused: dict[str, str] = {}  # why a model's last load failed, by name
        self.coming: set[str] | None = set()  # models whose load has not begun; None: that may be any
        self.defaults: dict[str, Defaults] = {}  # by model
        self.texts = TextModels()
        self.text_names: set[str] = set()  # of models of texts, also of those that are not there, or not yet
        self.answers: Counter[tuple[str, str]] = Counter()  # to calls of other servers, by protocol and code
        # Of the core's: its answers to its own connections, and rows and the last answer's time of a model.
        self.core_answers: Callable[[], Mapping[tuple[str, str], int]] = dict
        self.core_counts: Callable[[str], tuple[int, int]] = lambda _name: (0, 0)
        self._reload = reload or models.load
        self._slow = ThreadPoolExecutor(4, "ortmulti-load")
        self._interfaces: dict[str, Interface] = {}

    # Health, metrics and metadata.

    def metrics(self) -> str:
        """Return the repository's metrics and the counts of answers, for Prometheus."""
        page = Page()
        stats = self.models.stats()
        add_to(page, stats, {})
        add_gpu_memory(page, stats.devices, {})
        answers = self.answers + Counter(self.core_answers())
        counts = [({"protocol": protocol, "code": code}, count) for (protocol, code), count in answers.items()]
        page.add("serve_answers_total", "counter", "Answers, by protocol and code.", counts, {})
        if self.texts:
            self.texts.add_to(page)
        return str(page)

    def texts_ready(self) -> list[str]:
        """Return the names of the models of texts that take requests."""
        away = {model.name for model in self.models.index() if model.state != "READY"}
        return [name for name in self.texts if name not in away]

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

        def described(values: Sequence[Declared]) -> list[dict[str, Any]]:
            return [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in values]

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

        def described(values: Sequence[Declared], **more: Any) -> list[dict[str, Any]]:
            return [
                {
                    "name": one.name,
                    "data_type": one.data_type,
                    "dims": one.shape[1:] if most else one.shape,
                    "is_shape_tensor": False,
                    "is_non_linear_format_io": False,
                    **more,
                }
                for one in values
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
        inferences, last = self.core_counts(name)
        return {
            "name": name,
            "version": pool.version or _UNNAMED,
            "last_inference": last,
            "inference_count": max(done, inferences),
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
        refused = self.refused.copy()

        def described(name: str, version: str, state: str, reason: str) -> dict[str, str]:
            return {"name": name, "version": version, "state": state, "reason": reason}

        found = [
            described(model.name, model.version or _UNNAMED, model.state, refused.pop(model.name, "") or model.reason)
            for model in self.models.index()
        ]
        found += [described(name, "", "UNAVAILABLE", reason) for name, reason in refused.items()]
        there = {each["name"] for each in found}
        found += [described(name, "", "LOADING", "") for name in sorted((self.coming or set()) - there)]
        return [each for each in found if each["state"] == "READY" or not ready]

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
            LOGGER.warning("a client's load of the model %r failed: %s", name, error)
            self.refused[name] = reason = without_folders(str(error))
            raise Refused(400, f"failed to load '{name}': {reason}") from error
        self.refused.pop(name, None)

    def unload(self, name: str) -> None:
        """Unload a model. It may be loaded again."""
        self._check_explicit()
        try:
            self.models.unload(name)
        except NotFound:
            raise Refused(404, f"failed to unload '{name}': there is no such model") from None
        LOGGER.info("the model %r is unloaded", name)
        self.refused.pop(name, None)

    def _check_explicit(self) -> None:
        if not self.explicit:
            raise Refused(
                400, "explicit model load / unload is not allowed: start the server with --model-control explicit"
            )

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
            if name not in self.models and self.coming is not None and name not in self.coming:
                raise Refused(404, f"Request for unknown model: '{name[:200]}' is not found") from None
            raise Refused(503, f"Request for unknown model: '{name}' has no available versions") from None
        present = pool.version or _UNNAMED  # the pool's own: another one may take its place now
        if version and version != present:
            raise Refused(404, f"Request for unknown model: '{name}' version {version[:20]} is not found")
        interface = self._interfaces.get(name)
        if interface is None or interface.pool is not pool:
            interface = self._interfaces[name] = Interface(pool)
        return interface, present


def status_and_text(error: BaseException) -> tuple[int, str]:
    """Return HTTP's status of an error, and the text for the client."""
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, Error):
        return 400 if error.http_status == 422 else error.http_status, error.public
    return 500, "the request failed"
