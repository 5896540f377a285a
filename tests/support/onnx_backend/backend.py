"""ONNX's backend interface: check, load and run models."""

from __future__ import annotations

import os
import unittest
from typing import Any

from onnx import ModelProto, helper
from onnx.backend.base import Backend
from onnx.checker import check_model

from ortmulti._runtime import startup
from ortmulti.devices.providers import CPU, CUDA
from ortmulti.errors import RuntimeException
from ortmulti.interface.session import InferenceSession
from ortmulti.options.session_options import SETTINGS, SessionOptions
from tests.support.onnx_backend import _options
from tests.support.onnx_backend.backend_rep import OnnxRuntimeBackendRep

__all__ = [
    "OnnxRuntimeBackend",
    "is_compatible",
    "is_opset_supported",
    "prepare",
    "run",
    "run_model",
    "run_node",
    "supports_device",
]

# Without those that write files.
_SESSION_OPTIONS = frozenset({*SETTINGS, "enable_mem_reuse", "execution_order"}) - {
    "enable_profiling",
    "optimized_model_filepath",
    "profile_file_prefix",
}

_RELEASED_ONLY = "session.allow_released_opsets_only"

Providers = list[str | tuple[str, dict[str, int]]]


class OnnxRuntimeBackend(Backend):
    """ONNX's backend interface over ortmulti's sessions.

    A device is ``"CPU"``, ``"CUDA"`` or ``"GPU"`` (the first GPU), ``"CUDA:1"`` (another one), or None (a GPU if there
    is one, else the CPU). A named device that cannot run the model is an error.

    Attributes:
        allowReleasedOpsetsOnly: Whether to skip models with operator sets that the onnx package does not list as
            released. Default True, unless the environment variable ALLOW_RELEASED_ONNX_OPSET_ONLY is not ``1``.
    """

    allowReleasedOpsetsOnly = os.environ.get("ALLOW_RELEASED_ONNX_OPSET_ONLY", "1") == "1"  # noqa: N815

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:  # noqa: ARG003
        """Return whether the device can be used. The model does not matter."""
        return device is None or cls.supports_device(device)

    @classmethod
    def is_opset_supported(cls, model: ModelProto) -> tuple[bool, str]:
        """Return whether the model's operator sets are released ones.

        Returns:
            Whether the model may run, and the reason if not (else an empty text).
        """
        if cls.allowReleasedOpsetsOnly:
            for opset in model.opset_import:
                domain = opset.domain or "ai.onnx"
                if (domain, opset.version) not in helper.OP_SET_ID_VERSION_MAP:
                    return False, (
                        f"version {opset.version} of the operator set {domain} is not a released one, which "
                        "the environment variable ALLOW_RELEASED_ONNX_OPSET_ONLY=0 allows"
                    )
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether sessions can be created on the device."""
        kind, _, index = device.partition(":")
        if index and not index.isdecimal():
            return False
        if kind == "CPU":
            return int(index or 0) == 0
        if kind not in ("CUDA", "GPU") or CUDA not in startup.get_available_providers():
            return False
        return int(index or 0) < startup.device_count()

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """Load a model.

        Args:
            model: An `onnx.ModelProto`, which is checked; a model's path or bytes; an `InferenceSession`; or an earlier
                result of this function, which is returned again.
            device: Where the model runs; see the class. Not used for a session.
            **kwargs: Attributes of `SessionOptions`; those that write files cannot be set here. Other names are
                ignored.

        Returns:
            The model, ready to run.

        Raises:
            onnx.checker.ValidationError: The `onnx.ModelProto` is not valid.
            unittest.SkipTest: The model has an operator set that is not released; see `is_opset_supported`.
            RuntimeException: The device does not exist, or an option cannot be set here.
            As `InferenceSession`.
        """
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if isinstance(model, ModelProto):
            content = model.SerializeToString()
            check_model(content)
            supported, why_not = cls.is_opset_supported(model)
            if not supported:
                raise unittest.SkipTest(why_not)
            model = content
        options = SessionOptions()
        # ONNX Runtime has a check of its own, by what it knows.
        options.add_session_config_entry(_RELEASED_ONLY, "1" if cls.allowReleasedOpsetsOnly else "0")
        _options.apply(options, kwargs, _SESSION_OPTIONS)
        return OnnxRuntimeBackendRep(InferenceSession(model, options, cls._providers(device)))

    @classmethod
    def _providers(cls, device: str | None) -> Providers | None:
        if device is None:
            return None
        if not cls.supports_device(device):
            raise RuntimeException(f"there is no device {device!r} here: {CPU} needs 'CPU', {CUDA} 'CUDA' or 'CUDA:N'")
        kind, _, index = device.partition(":")
        return [CPU] if kind == "CPU" else [(CUDA, {"device_id": int(index or 0)}), CPU]

    @classmethod
    def run_model(  # type: ignore[override]
        cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call `prepare` and `OnnxRuntimeBackendRep.run`; both get the keywords."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Any,
        device: str | None = None,
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Raise an error, as in onnxruntime: ONNX Runtime creates sessions of whole models.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a single node cannot be run: make a model of it and use run_model")


is_compatible = OnnxRuntimeBackend.is_compatible
is_opset_supported = OnnxRuntimeBackend.is_opset_supported
prepare = OnnxRuntimeBackend.prepare
run = run_model = OnnxRuntimeBackend.run_model
run_node = OnnxRuntimeBackend.run_node
supports_device = OnnxRuntimeBackend.supports_device
