"""Triton's config.pbtxt: the parts that mean something here, and the names of the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ortmulti.errors import InvalidArgument

__all__ = ["Config", "Tensor", "read"]

# Blanks and comments are matches of their own, without a group: so no text can be split in two ways.
_TOKEN = re.compile(r"""\s+|\#[^\n]*|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|[{}<>\[\]:;,])""")
_DEEPEST = 50
_MOST = 2**63 - 1

_TRUST = "trust_batching"  # of parameters; not Triton's
# Triton's words for options of a session.
_PARAMETERS = {"intra_op_thread_count": "intra_op_num_threads", "inter_op_thread_count": "inter_op_num_threads"}


def _parse(text: str) -> dict[str, list[Any]]:
    """Parse protobuf's text format: each field's values, as str, int, float, bool or dict.

    Raises:
        InvalidArgument: It is none.
    """
    tokens = list(_tokens(text))
    fields, at = _fields(tokens, 0, "", 0)
    if at != len(tokens):
        raise InvalidArgument(f"{tokens[at]!r:.60} is in excess")
    return fields


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            line = text.count("\n", 0, at) + 1
            raise InvalidArgument(f"line {line} is not protobuf's text format: {text[at : at + 20]!r}")
        if found[1] is not None:
            yield found[1]
        at = found.end()


def _fields(tokens: list[str], at: int, end: str, depth: int) -> tuple[dict[str, list[Any]], int]:
    if depth > _DEEPEST:
        raise InvalidArgument(f"messages are nested more than {_DEEPEST} times")
    fields: dict[str, list[Any]] = {}
    while at < len(tokens) and tokens[at] != end:
        name = tokens[at]
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise InvalidArgument(f"a field's name was expected, not {name!r:.60}")
        at += 1
        colon = tokens[at : at + 1] == [":"]
        at += colon
        values = fields.setdefault(name, [])
        if tokens[at : at + 1] == ["["]:
            at += 1
            while tokens[at : at + 1] != ["]"]:
                value, at = _value(tokens, at, name, depth)
                values.append(value)
                at += tokens[at : at + 1] == [","]
            at += 1
        else:
            value, at = _value(tokens, at, name, depth)
            values.append(value)
        at += tokens[at : at + 1] in ([","], [";"])
    if end and at == len(tokens):
        raise InvalidArgument(f"a {end!r} is missing")
    return fields, at


def _value(tokens: list[str], at: int, name: str, depth: int) -> tuple[Any, int]:
    if at >= len(tokens):
        raise InvalidArgument(f"{name} has no value")
    token = tokens[at]
    if token in ("{", "<"):
        found, at = _fields(tokens, at + 1, "}" if token == "{" else ">", depth + 1)
        return found, at + 1
    if token[0] in "\"'":
        return re.sub(r"\\(.)", r"\1", token[1:-1]), at + 1
    if token in ("true", "false"):
        return token == "true", at + 1
    for kind in (int, float):
        try:
            return kind(token), at + 1
        except ValueError:
            pass
    if not re.fullmatch(r"[A-Za-z_]\w*", token):
        raise InvalidArgument(f"{name} has the value {token!r:.60}")
    return token, at + 1


class _Config:
    """A parsed message that knows which of its fields were asked for."""

    def __init__(self, fields: dict[str, list[Any]], path: str = "") -> None:
        self._fields = fields
        self._path = path
        self._asked: set[str] = set()
        self._parts: list[_Config] = []

    def one(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        return self._fields.get(name, [default])[-1]

    def part(self, name: str) -> _Config:
        self._asked.add(name)
        self._parts.append(_message(name, self._fields.get(name, [{}])[-1], f"{self._path}{name}."))
        return self._parts[-1]

    def parts(self, name: str) -> list[_Config]:
        return [_message(name, found) for found in self.all(name)]

    def all(self, name: str) -> list[Any]:
        self._asked.add(name)
        return self._fields.get(name, [])

    def unused(self) -> list[str]:
        own = [self._path + name for name in self._fields if name not in self._asked]
        return own + [name for part in self._parts for name in part.unused()]

    def __contains__(self, name: object) -> bool:
        return name in self._fields


def _message(name: str, found: object, path: str = "") -> _Config:
    if not isinstance(found, dict):
        raise InvalidArgument(f"{name} is a message, not {found!r:.60}")
    return _Config(found, path)


class Tensor(NamedTuple):
    """An input or output as a configuration states it.

    Attributes:
        kind: ``"input"`` or ``"output"``.
        name: Its name.
        data_type: Triton's word; "" where none is stated.
        dims: With the batch dimension, -1 for any size; empty where the model may have others.
    """

    kind: str
    name: str
    data_type: str
    dims: list[int]


class Config(NamedTuple):
    """What a configuration says.

    Attributes:
        options: Of `ModelRepository.add`.
        timeout: Seconds, of requests without a deadline; None: none.
        may_override: Whether a request may have an earlier deadline than that.
        priority: Triton's level of requests without one.
        name: The model's, if it is there.
        file: The model's file in a version's folder.
        versions: Those that may be served; None: any.
        max_batch_size: Rows of a request at most; 0: any number.
        tensors: Inputs and outputs.
        libraries: Of custom operators, as the file names them.
        ignored: Its parts that mean nothing here.
    """

    options: dict[str, Any]
    timeout: float | None
    may_override: bool
    priority: int
    name: str
    file: str
    versions: list[int] | None
    max_batch_size: int
    tensors: list[Tensor]
    libraries: list[str]
    ignored: list[str]


def read(text: str) -> Config:
    """Read a configuration.

    Raises:
        InvalidArgument: The text is no configuration, or of a model that is not ONNX.
    """
    from ortmulti.pool.configuration import Batching

    config = _Config(_parse(text))
    for name in ("sequence_batching", "ensemble_scheduling"):
        if name in config:
            raise InvalidArgument(f"a model with {name} is not served: its answers would be wrong")
    if config.part("model_transaction_policy").one("decoupled"):
        raise InvalidArgument("a decoupled model is not served: each request has one answer")
    platform, backend = config.one("platform", ""), config.one("backend", "")
    if platform not in ("", "onnxruntime_onnx") or backend not in ("", "onnxruntime"):
        raise InvalidArgument(f"the model is one of {backend or platform}: only onnxruntime's are served")
    options: dict[str, Any] = {}
    most = _int(config.one("max_batch_size", 0), "max_batch_size")
    joins = "dynamic_batching" in config
    dynamic, parameters = config.part("dynamic_batching"), _parameters(config)
    if joins or "max_batch_size" in config:
        options["batching"] = None
    if joins and most > 1:
        # What is preferred is not needed: a run begins with what waits.
        dynamic.all("preferred_batch_size")
        delay = _int(dynamic.one("max_queue_delay_microseconds", 0), "max_queue_delay_microseconds")
        trusted = parameters.get(_TRUST, "").lower() in ("1", "true")
        options["batching"] = Batching(most, delay / 1000, trust=trusted)
    dynamic.all("priority_levels")  # any number of them
    level = _int(dynamic.one("default_priority_level", 0), "default_priority_level")
    tensors, ignored = _tensors(config, most > 0)
    if dynamic.one("preserve_ordering"):
        ignored.append("dynamic_batching.preserve_ordering: answers come when they are ready")
    policy = dynamic.part("default_queue_policy")
    if waiting := _int(policy.one("max_queue_size", 0), "max_queue_size"):
        options["max_queue"] = waiting
    microseconds = _int(policy.one("default_timeout_microseconds", 0), "default_timeout_microseconds")
    may_override = bool(policy.one("allow_timeout_override"))
    if policy.one("timeout_action", "REJECT") not in ("REJECT", 0):
        ignored.append("dynamic_batching.default_queue_policy.timeout_action: late requests are rejected")
    options |= _instances(config.parts("instance_group"), ignored)
    if config.all("model_warmup"):
        ignored.append("model_warmup: every model has a first run with random inputs")
    optimization = config.part("optimization")
    cuda, graph = optimization.part("cuda"), optimization.part("graph")
    if "graphs" in cuda:
        options["cuda_graph"] = bool(cuda.one("graphs")) and "auto"
    libraries = [str(name) for name in config.part("model_operations").all("op_library_filename")]
    if parameters.keys() & _PARAMETERS or "level" in graph:
        options["options"] = _session_options(parameters, graph.one("level"))
    ignored += [f"parameters: {name}" for name in parameters if name not in (*_PARAMETERS, _TRUST)]
    policies = config.part("version_policy")
    if policies.part("latest").one("num_versions", 1) != 1 or "all" in policies:
        policies.all("all")
        ignored.append("version_policy: the newest version is served")
    versions = None
    if "specific" in policies:
        versions = [_int(version, "versions") for version in policies.part("specific").all("versions")]
    return Config(
        options,
        microseconds / 1e6 if microseconds else None,
        may_override,
        level or 1,
        str(config.one("name", "")),
        str(config.one("default_model_filename", "model.onnx")),
        versions,
        most,
        tensors,
        libraries,
        ignored + config.unused(),
    )


def _tensors(config: _Config, batched: bool) -> tuple[list[Tensor], list[str]]:
    """Return the inputs and outputs, and what of them means nothing here."""
    tensors, ignored = [], []
    for kind in ("input", "output"):
        for stated in config.parts(kind):
            name, dims = str(stated.one("name", "")), stated.all("dims")
            if "reshape" in stated:
                ignored.append(f"{kind}.reshape: {name!r} has the model's own shape")
                dims = []
            word = stated.one("data_type")  # or its number
            data_type = word if isinstance(word, str) else ""
            tensors.append(Tensor(kind, name, data_type, [-1] * batched + dims if dims else []))
            stated.one("optional")  # as the model says
            ignored += [f"{kind}.{field} of {name!r}" for field in stated.unused()]
    return tensors, ignored


def _instances(groups: list[_Config], ignored: list[str]) -> dict[str, Any]:
    """Return the options that stand for groups of instances, which add up."""
    on_cpu = everywhere = 0
    of_gpu: Counter[int] = Counter()
    for group in groups:
        count, gpus = max(1, _int(group.one("count", 1), "count")), group.all("gpus")
        if group.one("kind", "KIND_AUTO") in ("KIND_CPU", 2):
            on_cpu += count
        elif gpus:
            of_gpu.update(dict.fromkeys((_int(number, "gpus") for number in gpus), count))
        else:
            everywhere += count
        group.one("name")
        ignored += [f"instance_group.{name}" for name in group.unused()]
    if on_cpu and not (everywhere or of_gpu):
        return {"devices": "cpu", "sessions_per_device": on_cpu}
    most = everywhere + max(of_gpu.values(), default=0)
    if on_cpu:
        ignored.append("instance_group: KIND_CPU beside GPUs")
    if len(set(of_gpu.values())) > 1 or (everywhere and of_gpu):
        ignored.append(f"instance_group: every GPU of the model has the largest count, {most}")
    options: dict[str, Any] = {"in_flight": most} if of_gpu or most > 1 else {}
    if of_gpu and not everywhere:
        options["devices"] = [f"cuda:{number}" for number in sorted(of_gpu)]
    return options


def _parameters(config: _Config) -> dict[str, str]:
    return {
        str(each.one("key", "")): str(each.part("value").one("string_value", "")) for each in config.parts("parameters")
    }


def _session_options(parameters: dict[str, str], level: object) -> Any:
    from ortmulti.options.session_options import GraphOptimizationLevel, SessionOptions

    options = SessionOptions()
    for name, attribute in _PARAMETERS.items():
        if name in parameters:
            try:
                setattr(options, attribute, int(parameters[name]))
            except ValueError as error:
                raise InvalidArgument(f"parameters: {name} is a number, not {parameters[name]!r}") from error
    levels = {
        -1: GraphOptimizationLevel.ORT_ENABLE_BASIC,
        1: GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        2: GraphOptimizationLevel.ORT_DISABLE_ALL,
    }
    if isinstance(level, int) and level in levels:
        options.graph_optimization_level = levels[level]
    return options


def _int(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise InvalidArgument(f"{name} is a number of 0 or more, not {value!r:.60}")
    return value
