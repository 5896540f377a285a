"""A session behind ONNX's backend interface."""

from __future__ import annotations

from typing import Any

from onnx.backend.base import BackendRep

from ortmulti.errors import InvalidArgument, RuntimeException
from ortmulti.interface.session import InferenceSession
from ortmulti.options.session_options import RunOptions
from tests.support.onnx_backend import _options

__all__ = ["OnnxRuntimeBackendRep"]

_RUN_OPTIONS = frozenset({"log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches"})


class OnnxRuntimeBackendRep(BackendRep):
    """A model that is ready to run.

    Args:
        session: Runs the model. It is not closed with this object.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:  # type: ignore[override]  # a list, as onnxruntime's
        """Run the model once.

        Args:
            inputs: A list with a value for each input of the model, in their order; or the value of the only input.
            **kwargs: ``log_severity_level``, ``log_verbosity_level``, ``logid`` and ``only_execute_path_to_fetches`` of
                the run's options; other names are ignored.

        Returns:
            All outputs, as `InferenceSession.run` returns them.

        Raises:
            InvalidArgument: ``inputs`` has fewer values than the model has inputs.
            RuntimeException: One value for a model with several inputs, or an option that cannot be set here.
            As `InferenceSession.run`.
        """
        options = RunOptions()
        _options.apply(options, kwargs, _RUN_OPTIONS)
        names = [declared.name for declared in self._session.get_inputs()]
        if not isinstance(inputs, list):
            if len(names) != 1:
                raise RuntimeException(f"the model has {len(names)} inputs: give a list of as many values")
            inputs = [inputs]
        if len(inputs) < len(names):
            raise InvalidArgument(f"the model has {len(names)} inputs, and the list has {len(inputs)} values")
        return self._session.run(None, dict(zip(names, inputs, strict=False)), options)
