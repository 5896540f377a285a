"""`ortmulti.fuse`: a faster form of an encoder, as a model file."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ortmulti import checks
from ortmulti._runtime import startup
from ortmulti.cache.staging import remove_tree
from ortmulti.create import core_sessions
from ortmulti.create.model import Model
from ortmulti.create.request import core_options
from ortmulti.create.sample_inputs import MISFITS
from ortmulti.devices import providers as _providers
from ortmulti.devices.device import Device, name_devices, parse_devices
from ortmulti.errors import Error, InvalidArgument, InvalidGraph, LibraryError, NotOptimizable
from ortmulti.optimized import fusion_proof
from ortmulti.optimized.fusion_proof import FusedRun
from ortmulti.options.foreign_options import to_session_options
from ortmulti.options.session_options import SessionOptions

if TYPE_CHECKING:
    from onnx import ModelProto

    from ortmulti import _core

__all__ = ["FusedModel", "FusedRun", "fuse", "fuse_prepared"]

_HALF = 0.02
_TOLERANCES = {"cpu": 1e-4, "cuda": 5e-3}
"""Of float32. On GPUs products may be computed with TF32."""
_INLINE = 1_900_000_000
"""Weights of more bytes than this are in a file beside the model: a file of this format holds 2 GB."""


@dataclass(frozen=True)
class FusedModel:
    """A fused model, as `fuse` made it.

    Attributes:
        path: Its file.
        device: The device that it was compared and timed on.
        nodes: Number of the graph's nodes before and after.
        fused: Number of each of ONNX Runtime's own operators.
        difference: By how much its outputs differ at most, as a share of the output's largest value.
        tolerance: By how much they might.
        runs: The timed runs.
        seconds: Time to make it, comparison included.
    """

    path: str
    device: str
    nodes: tuple[int, int]
    fused: Mapping[str, int]
    difference: float
    tolerance: float
    runs: tuple[FusedRun, ...]
    seconds: float


def fuse(
    model: str | os.PathLike[str],
    to: str | os.PathLike[str],
    device: str | int | Device | None = None,
    *,
    precision: Literal["fp32", "fp16"] = "fp32",
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
) -> FusedModel:
    """Write a faster form of an encoder to a new file: its attention becomes operators of ONNX Runtime's.

    For GPUs onnxruntime's package for transformers fuses other operators, too, which makes runs on a CPU slower. A
    second form for GPUs leaves out padding: tokens that the mask leaves out are not computed. Inputs and outputs stay
    as they are. The faster form is kept, but only if its outputs are the model's, for random inputs of several lengths
    and masks, and if its runs are faster than the model's. Needs the package onnx.

    Args:
        model: Path of a model.
        to: The new file. Weights of 2 GB and more are in another one beside it, with ``.data`` behind its name.
        device: ``"cpu"`` or a GPU, where it is compared and timed. Default: the first GPU, or the CPU on a machine
            without NVIDIA hardware.
        precision: ``"fp16"``: also compute with half precision. Inputs and outputs keep their types. ``"fp32"``: as the
            model does.
        options: Options of the sessions.
        provider_options: Options of the CUDA provider, without ``device_id``.

    Raises:
        NotOptimizable: Nothing of the model can be fused, the outputs differ, or the runs are not faster. No file is
            kept, and the message says why.
        InvalidArgument: There is a file at ``to`` already.
        LibraryError: The package onnx is missing.
        Error: The file cannot be written. If the model or the device cannot be used at all: as `InferenceSession`.
    """
    if "://" in os.fspath(model):
        raise InvalidArgument("fuse takes the path of a model's file: download it, or write its bytes to one")
    return fuse_prepared(model, to, device, None, precision, options, provider_options)


def fuse_prepared(
    model: str | os.PathLike[str],
    to: str | os.PathLike[str],
    device: str | int | Device | None,
    prepare: Callable[[ModelProto], None] | None,
    precision: Literal["fp32", "fp16"],
    options: SessionOptions | None,
    provider_options: Mapping[str, Any] | None,
) -> FusedModel:
    """Do the same for a model that is changed before: fused forms are compared with what it is then.

    Args:
        model, to, device, precision, options, provider_options: As for `fuse`.
        prepare: Changes the model. None: nothing does.
    """
    start = time.monotonic()
    source, target = Model(model), Path(to).absolute()
    checks.choice("precision", precision, ("fp32", "fp16"))
    for there in (target, _data_of(target)):
        if there.exists():
            raise InvalidArgument(f"'{there}' is there already: name a new file, or remove it")
    given: str | int | Device = "all" if device is None else device
    _providers.check_device_options(provider_options, name_devices(given))
    on = parse_devices(given)[0]
    if on.is_plugin:
        raise InvalidArgument(f"{on} is a plug-in's device, and models are fused for the CPU or a GPU")
    providers = _providers.for_device(on, provider_options)
    startup.ensure_open()
    _providers.check_usable(providers)
    core = core_options(to_session_options(options)).copy()
    core.optimized_model_filepath = ""
    made: dict[Path, FusedModel] = {}
    refused: list[str] = []
    fused = "with fused operators"
    changes = {fused: _fused, "without padding": _without_padding} if on.kind == "cuda" else {fused: _attention}
    with _beside(target) as folder:
        path = source.path
        if prepare is not None:
            proto, external = _read(path)
            prepare(proto)
            path = str(folder / "prepared" / target.name)
            _write(proto, Path(path), external=external)
        with _session(path, providers, core) as session:
            trial = _Trial(path, target, on, precision, providers, core, session)
            for kind, change in changes.items():
                staged = folder / str(len(made) + len(refused)) / target.name
                try:
                    made[staged] = trial.make(change, staged)
                except (NotOptimizable, InvalidGraph, *MISFITS) as error:
                    refused.append(f"{kind}, {error}")
        if not made:
            raise NotOptimizable(f"no fused model is kept: {'; '.join(refused)}")
        best = min(made, key=lambda each: fusion_proof.share(made[each].runs))
        for file in (_data_of(best), best):
            if file.exists():
                file.rename(target.with_name(file.name))
    return replace(made[best], seconds=time.monotonic() - start)


@dataclass(frozen=True)
class _Trial:
    """What all fused forms of a model are made of and compared with."""

    model: str
    target: Path
    device: Device
    precision: str
    providers: list[_providers.Provider]
    options: _core.SessionOptions
    session: _core.Session

    def make(self, change: Callable[[ModelProto], ModelProto], staged: Path) -> FusedModel:
        """Write the fused model, compare it and time it.

        Raises:
            NotOptimizable: It is not to be kept.
            Error: ONNX Runtime cannot load it, or it cannot be written.
        """
        proto, external = _read(self.model)
        before, declared, longest = len(proto.graph.node), _interface(proto), _longest(proto)
        half = _has_halves(proto)
        proto = change(proto)
        if self.precision == "fp16" and not half:
            proto, half = _halved(proto), True
        if _interface(proto) != declared:
            raise NotOptimizable("it has other inputs or outputs")
        _write(proto, staged, external=external)
        after = len(proto.graph.node)
        counted = Counter(node.op_type for node in proto.graph.node if node.domain == "com.microsoft")
        if not counted and self.precision == "fp32":
            raise NotOptimizable(
                "no attention is found: queries, keys and values that are split into heads, and a softmax between two "
                "products"
            )
        del proto  # whose weights the session has again
        tolerance = _HALF if half else _TOLERANCES[self.device.kind]
        with _session(str(staged), self.providers, self.options) as fused:
            empty = self.precision == "fp32" and "RemovePadding" not in counted
            most = fusion_proof.prove(self.session, fused, longest, tolerance, empty=empty)
            runs = fusion_proof.race(self.session, fused, mixed=self.device.kind == "cuda")
        return FusedModel(
            str(self.target), str(self.device), (before, after), dict(counted), most, tolerance, runs, 0.0
        )


def _attention(proto: ModelProto) -> ModelProto:
    from ortmulti.optimized import attention

    attention.fuse_attention(proto)
    return proto


def _fused(proto: ModelProto) -> ModelProto:
    proto = _attention(proto)
    with _of_onnxruntime("fuse"):
        from onnxruntime.transformers.fusion_options import FusionOptions
        from onnxruntime.transformers.optimizer import optimize_by_fusion

        for name, module in list(sys.modules.items()):  # they warn of shapes that they do not know
            if "onnxruntime" in str(getattr(module, "__file__", "")):
                logging.getLogger(name).setLevel(logging.ERROR)
        options = FusionOptions("bert")
        options.enable_shape_inference = False  # which needs more packages
        changed: ModelProto = optimize_by_fusion(proto, "bert", optimization_options=options).model
        return changed


def _without_padding(proto: ModelProto) -> ModelProto:
    from ortmulti.optimized.packing import remove_padding

    proto = _fused(proto)
    remove_padding(proto)
    return proto


def _halved(proto: ModelProto) -> ModelProto:
    with _of_onnxruntime("convert to half precision"):
        from onnxruntime.transformers.float16 import convert_float_to_float16

        # Inference of shapes takes 2 GB at most.
        large = _bytes_of(proto) > _INLINE
        changed: ModelProto = convert_float_to_float16(proto, keep_io_types=True, disable_shape_infer=large)
        return changed


@contextlib.contextmanager
def _of_onnxruntime(what: str) -> Iterator[None]:
    """Let onnxruntime's package change a model. It knows few models, and has its folder among those of modules."""
    path = list(sys.path)
    try:
        import onnxruntime.transformers as package

        sys.path.append(package.__path__[0])
        yield
    except Exception as error:
        raise NotOptimizable(f"onnxruntime's package cannot {what}: {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = path


def _read(path: str) -> tuple[ModelProto, bool]:
    """Read a model, and return whether it has external data."""
    try:
        import onnx
    except ImportError as error:
        raise LibraryError(f'fuse needs onnx ({error}): pip install "ortmulti[models]"', name="onnx") from None
    try:
        proto = onnx.load(path, load_external_data=False)
        external = any(tensor.external_data for tensor in proto.graph.initializer)
        onnx.load_external_data_for_model(proto, str(Path(path).parent))
        return proto, external
    except Exception as error:  # of protobuf, or of onnx's checks
        raise NotOptimizable(f"the package onnx cannot read the model: {error}") from error


def _write(proto: ModelProto, path: Path, *, external: bool) -> None:
    import onnx

    try:
        path.parent.mkdir()
        if external or _bytes_of(proto) > _INLINE:
            onnx.save(proto, path, save_as_external_data=True, location=_data_of(path).name, convert_attribute=False)
        else:
            onnx.save(proto, path)
    except OSError as error:
        raise Error(f"the fused model cannot be written: {error}") from error


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Make a folder beside a file that is not there yet."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".ortmulti-", dir=target.parent))
    except OSError as error:
        raise Error(f"the fused model cannot be written: {error}") from error
    try:
        yield folder
    finally:
        remove_tree(folder)


@contextlib.contextmanager
def _session(path: str, providers: list[_providers.Provider], options: _core.SessionOptions) -> Iterator[_core.Session]:
    [session], _ = core_sessions.create(path, [providers], options)
    try:
        yield session
    finally:
        session.close()


def _data_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")


def _bytes_of(proto: ModelProto) -> int:
    return sum(len(tensor.raw_data) for tensor in proto.graph.initializer)


def _has_halves(proto: ModelProto) -> bool:
    return any(tensor.data_type in (tensor.FLOAT16, tensor.BFLOAT16) for tensor in proto.graph.initializer)


def _interface(proto: ModelProto) -> list[bytes]:
    """Return names, types and shapes of the inputs and outputs."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    return [value.name.encode() + value.type.SerializeToString() for value in (*inputs, *proto.graph.output)]


def _longest(proto: ModelProto) -> int:
    """Return the longest input to try: embeddings of positions end somewhere, and some begin at the second one.

    Not every device notices a position that is not there.
    """
    rows = {tensor.name: tensor.dims[0] for tensor in proto.graph.initializer if len(tensor.dims) == 2}
    tables = [rows.get(node.input[0], 0) for node in proto.graph.node if node.op_type == "Gather"]
    return int(min([fusion_proof.LONGEST, *(size for size in tables if size > 2 * max(fusion_proof.LENGTHS))])) - 2
