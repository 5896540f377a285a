"""Calls of a session other than `run`: asynchronous runs, options of providers, captured graphs, tuning results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ortmulti import _core, checks
from ortmulti._runtime import callbacks
from ortmulti.devices import providers as _providers
from ortmulti.errors import ClosedError, Fail, InvalidArgument, InvalidType
from ortmulti.options.foreign_options import to_run_options
from ortmulti.options.session_options import RunOptions
from ortmulti.options.threads import ThreadCounts

LOGGER = logging.getLogger("ortmulti")


class SessionCalls:
    """The part of `InferenceSession` that needs only the core's session."""

    _core: _core.Session

    def run_async(
        self,
        output_names: Iterable[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model without waiting: the result goes to a callback.

        The session's threads do the runs in the order of the calls. At most ``intra_op_num_threads`` run at the same
        time, on a GPU one. One thread calls all callbacks of the process, one at a time. So a slow callback delays the
        others. A callback may start further runs, or close the session. When the interpreter ends, it cancels runs that
        have not begun, and waits for the last callback.

        Args:
            output_names, input_feed, run_options: As `run`. The arrays must not change until the callback was called.
            callback: Called as ``callback(results, user_data, error)``. After a success ``results`` are those of `run`,
                and ``error`` is empty. After a failure ``results`` is an empty list, and ``error`` has the reason. Its
                own exceptions go to `sys.unraisablehook`.
            user_data: Passed to the callback.

        Raises:
            InvalidArgument, InvalidType, NotImplemented: As `run`, for wrong arguments.
            InvalidType: ``callback`` cannot be called.
            ClosedError, ForkError: As `run`.
        """
        if not callable(callback):
            raise InvalidType(f"callback is a function of the results, not {callback!r}")
        callbacks.start()
        _core.run_async(self._core, output_names, input_feed, callback, user_data, to_run_options(run_options))

    @property
    def thread_counts(self) -> ThreadCounts | None:
        """Return the threads of the session's pools, if ortmulti made them (`SessionOptions.threads`); else None."""
        counts = _core.thread_counts_of(self._core)
        return None if counts is None else ThreadCounts._from_core(counts)

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """Change options of the execution providers of this session.

        Args:
            options: Keys and values, such as ``{"ep.dynamic.workload_type": "Efficient"}``. Providers ignore unknown
                keys; the CPU's knows none.

        Raises:
            InvalidType: ``options`` is not a dict of str.
            InvalidArgument: It is empty, or a provider refuses a value.
            ClosedError, ForkError: As `run`.
        """
        if not isinstance(options, Mapping):
            raise InvalidType(f"options is a dict of str, not {options!r}")
        for item in (*options.keys(), *options.values()):
            if not isinstance(item, str):
                raise InvalidType(f"options has keys and values of type str, not {item!r}")
        if not options:
            raise InvalidArgument("options is empty: there is nothing to set")
        self._core.set_provider_options(dict(options))

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Free the graph that runs with this number in their config entry ``gpu_graph_id`` have captured.

        As in onnxruntime, nothing happens if the graph does not exist or the provider cannot free graphs.

        Args:
            graph_annotation_id: The number; default 0: for runs without such an entry.

        Raises:
            InvalidType, InvalidArgument: It is not an int, or has more than 32 bits.
            NotImplemented: ONNX Runtime is older than 1.27.
            ClosedError, ForkError: As `run`.
        """
        number = checks.integer("graph_annotation_id", graph_annotation_id, -(2**31), checks.INT_MAX)
        self._core.release_captured_graph(number)

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """Return the results of tunable operators: always none, since ONNX Runtime's C API cannot enable them.

        Raises:
            ClosedError: The session is closed.
        """
        self._check_open()
        return []

    def set_tuning_results(self, results: list[dict[str, Any]], *, error_on_invalid: bool = False) -> None:
        """Accept results of tunable operators, without using them: ONNX Runtime's C API cannot enable such operators.

        Args:
            results: The result of onnxruntime's `get_tuning_results`: dicts with ``"ep"``, ``"validators"`` and
                ``"results"``.
            error_on_invalid: Raise for the first result. Default: the logger ``ortmulti`` warns of each.

        Raises:
            Fail: ``results`` is not empty, with ``error_on_invalid``.
            InvalidType, InvalidArgument: ``results`` is not a list of such dicts.
            ClosedError: The session is closed.
        """
        self._check_open()
        checks.instance("results", results, list)
        providers = [_check_tuning_result(result) for result in results]
        have = self._provider_names()
        for index, name in enumerate(providers):
            reason = f"{name} has no tunable operators" if name in have else f"there is no {name} in this session"
            message = f"result {index} of set_tuning_results cannot be used: {reason}"
            if error_on_invalid:
                raise Fail(message)
            LOGGER.warning("%s", message)

    def _check_open(self) -> None:
        if self._core.closed():
            raise ClosedError(f"the session of {self._core.model()} on {self._core.device()} is closed")

    def _provider_names(self) -> list[str]:
        names = [name for name, _ in self._core.providers()]
        return names if _providers.CPU in names else [*names, _providers.CPU]


def _check_tuning_result(result: object) -> str:
    """Return the provider of a result."""
    if not isinstance(result, Mapping):
        raise InvalidType(f"a result is a dict, not {result!r}")
    for key in ("ep", "validators", "results"):
        if key not in result:
            raise InvalidArgument(f"a result has the keys 'ep', 'validators' and 'results'; {key!r} is missing")
    if not isinstance(result["ep"], str):
        raise InvalidType(f"a result's 'ep' is the name of a provider, not {result['ep']!r}")
    for key in ("validators", "results"):
        if not isinstance(result[key], Mapping):
            raise InvalidType(f"a result's {key!r} is a dict, not {result[key]!r}")
    return result["ep"]
