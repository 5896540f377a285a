"""The sessions of one model behind one queue."""

from __future__ import annotations

import abc
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, Unpack, overload

from ortmulti import _core, checks
from ortmulti._runtime import callbacks
from ortmulti._runtime.closing import Closing
from ortmulti.errors import ClosedError, Error, InvalidArgument, InvalidType
from ortmulti.interface.session import Sessions
from ortmulti.options.session_options import RunOptions
from ortmulti.pool import many
from ortmulti.pool.call import Call, CoreCall, core_call, takes_call
from ortmulti.pool.configuration import Batching, Warmup
from ortmulti.pool.futures import PoolFuture, Submitted, Timing, when_answered
from ortmulti.pool.membership import Membership, Readiness
from ortmulti.pool.stats import PoolStats
from ortmulti.timeline import Timeline
from ortmulti.values.ort_value import OrtValue

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from ortmulti._core import PoolRequest
    from ortmulti.pool.members import Members
    from ortmulti.pool.rows import RowVerdict

__all__ = ["Batching", "Pool", "Requests", "StandIn", "members_of", "rows_of", "span_of"]

_Self = TypeVar("_Self", bound="Requests")
_SelfPool = TypeVar("_SelfPool", bound="Pool")

_event_loops: ModuleType | None = None  # imported by the first `run_async`: asyncio is large


class RequestSpan(Protocol):
    """What records a request; see `ortmulti.otel`."""

    def fail(self, error: BaseException) -> None:
        """It was not accepted."""

    def end(self, outputs: object, error: BaseException | None, cancelled: bool, timing: Timing | None) -> None:
        """It was answered, failed, or was cancelled."""


_ENDING = "the interpreter is ending: the pool takes no more requests"
_begin_span: Callable[[str, str], RequestSpan | None] | None = None


def set_spans(begin: Callable[[str, str], RequestSpan | None] | None) -> None:
    """Have this called with the model and the version of each request; None: nothing."""
    global _begin_span
    _begin_span = begin


def _import_event_loops() -> ModuleType:
    global _event_loops
    from ortmulti.pool import event_loops

    _event_loops = event_loops
    return event_loops


class Requests(Readiness, Closing):
    """What a pool and a repository's model have in common: all that is asked of the sessions of one model."""

    @property
    def sessions(self) -> Sessions:
        """The sessions that exist by now, those of the first device first. After `close`, using one raises
        `ClosedError`.
        """
        return self._members.sessions

    @property
    def devices(self) -> list[str]:
        """The device of each session that exists by now."""
        return self._members.devices

    @property
    def timeline(self) -> Timeline:
        """The spans of loading: how long each step took."""
        return self._members.timeline

    @overload
    def run(
        self,
        output_names: Sequence[str] | Mapping[str, Any] | None = None,
        input_feed: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["numpy"] = "numpy",
        **call: Unpack[Call],
    ) -> list[NDArray[Any]]: ...

    @overload
    def run(
        self,
        output_names: Sequence[str] | Mapping[str, Any] | None = None,
        input_feed: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["device"],
        **call: Unpack[Call],
    ) -> list[OrtValue]: ...

    @takes_call
    def run(
        self,
        output_names: Sequence[str] | Mapping[str, Any] | None = None,
        input_feed: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["numpy", "device"] = "numpy",
        **call: Unpack[Call],
    ) -> list[Any]:
        """Run the model once and return the requested outputs: in this thread if a session is idle.

        Args:
            output_names: Names of the outputs wanted; None or empty for all. May be left out: ``run({"x": x})``.
            input_feed: A value for each input, as for `InferenceSession.run`.
            run_options: Options of this run. Without them, Ctrl-C ends the run, and so does its ``timeout``.
            outputs: ``"numpy"``: arrays. ``"device"``: `OrtValue`s, each on the device where the model leaves it.
                DLPack hands them on without a copy.
            **call: Arguments of every request: `Call`.

        Raises:
            Error: As `InferenceSession.run`.
            ClosedError: The pool is closed.
            DeadlineExceeded: There was no answer within ``timeout``.
            DeviceError: The pool has no working session left on ``device``, or at all.
            InvalidArgument: ``device`` is not in the pool.
            InvalidType: ``input_feed`` is missing.
            Error: Loading failed after `load` had returned.
        """
        if input_feed is None:
            output_names, input_feed = None, _feed_alone(output_names)
        results = self._run(output_names, input_feed, self._call(run_options, outputs, call))
        return _to_values(results) if outputs == "device" else results

    @takes_call
    def submit(
        self,
        output_names: Sequence[str] | Mapping[str, Any] | None = None,
        input_feed: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["numpy", "device"] = "numpy",
        when_full: Literal["block", "reject"] | float = "block",
        **call: Unpack[Call],
    ) -> PoolFuture:
        """Submit a run and return its future. The future's result is the result of `run`.

        Arrays are not copied: do not write to them before the result is there, or the answer may be that to other
        values.

        Args:
            output_names, input_feed, run_options, outputs: As for `run`.
            when_full: What to do if the queue has ``max_queue`` requests. ``"block"``: wait for room. ``"reject"``:
                raise. A number of seconds: wait so long, then raise.
            **call: Arguments of every request: `Call`.

        Raises:
            Error: As `run`, for wrong arguments. Errors of the run come from the future. Before the first session is
                ready, so do errors of inputs that do not fit the model.
            QueueFull: The queue had no room, with ``when_full`` other than ``"block"``.
            DeadlineExceeded: It would be late, with ``when_late="reject"`` of `load`; or there was no room in time.
        """
        if input_feed is None:
            output_names, input_feed = None, _feed_alone(output_names)
        options = self._call(run_options, outputs, call)
        wait = None if when_full == "block" else _wait(when_full)
        return self._submit(output_names, input_feed, wait, True, outputs == "device", options)

    @overload
    async def run_async(
        self,
        output_names: Sequence[str] | Mapping[str, Any] | None = None,
        input_feed: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["numpy"] = "numpy",
        when_full: Literal["block", "reject"] = "block",
        **call: Unpack[Call],
    ) -> list[NDArray[Any]]: ...

    @overload
    async def run_async(
        self,
        output_names: Sequence[str] | Mapping[str, Any] | None = None,
        input_feed: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["device"],
        when_full: Literal["block", "reject"] = "block",
        **call: Unpack[Call],
    ) -> list[OrtValue]: ...

    @takes_call
    async def run_async(
        self,
        output_names: Sequence[str] | Mapping[str, Any] | None = None,
        input_feed: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["numpy", "device"] = "numpy",
        when_full: Literal["block", "reject"] = "block",
        **call: Unpack[Call],
    ) -> list[Any]:
        """Run the model as `run` does, without blocking the event loop (asyncio's, or one with its interface).

        Cancelling the task cancels the request. Arrays are not copied: do not write to them meanwhile.

        Args:
            output_names, input_feed, run_options, outputs: As for `run`.
            when_full: What to do if the queue has ``max_queue`` requests. ``"block"``, the default: wait in the queue
                anyway. ``"reject"``: raise.
            **call: Arguments of every request: `Call`.

        Raises:
            Error: As `run`.
            ClosedError: The pool was closed with ``cancel_pending`` before the request began.
            QueueFull: The queue had no room, with ``when_full="reject"``.
            RuntimeException: No event loop of asyncio runs in this thread.
        """
        if when_full != "block" and when_full != "reject":
            raise InvalidArgument(f"when_full is 'block' or 'reject', not {when_full!r}")
        if input_feed is None:
            output_names, input_feed = None, _feed_alone(output_names)
        limited = when_full == "reject"
        options = self._call(run_options, outputs, call)
        span = None if _begin_span is None else self._span()
        loops = _event_loops or _import_event_loops()
        while span is None:
            core = self._members.core
            try:
                submitted = core.submit_async(output_names, input_feed, limited, options)
                if submitted is not None:
                    answer, request = submitted
                    try:
                        results = await answer
                    except BaseException:
                        core.cancel_async(request)
                        raise
                    return _to_values(results) if outputs == "device" else results
            except ClosedError:
                if core is self._members.core:
                    raise  # else with the next model
                continue
            if not loops.watch(loops.running_loop()):
                break
        # A loop that watches no file descriptors, or a request that is recorded.
        future = self._submit(output_names, input_feed, 0.0, limited, outputs == "device", options, span)
        future._of_task = True
        wrapped: Awaitable[list[Any]] = loops.wrap_future(future)
        return await wrapped

    @takes_call
    def map(
        self,
        output_names: Sequence[str] | Iterable[Mapping[str, Any]] | None = None,
        feeds: Iterable[Mapping[str, Any]] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["numpy", "device"] = "numpy",
        lookahead: int | None = None,
        **call: Unpack[Call],
    ) -> Iterator[list[Any]]:
        """Yield the outputs of each feed, in order, while the next ones run.

        Arrays are not copied: a generator must not reuse an array for a later feed.

        Args:
            output_names: As for `run`. May be left out: ``map(feeds)``.
            feeds: The inputs of each run; read as needed.
            run_options, outputs: As for `run`.
            lookahead: How many requests are submitted before the first of them is returned; default: two for each that
                can be under way, with batching two batches. On the CPU, requests of less than 0.2 ms run in the
                caller's thread by default, and none is read ahead. With padding it is how many are read and sorted by
                length, of which a quarter is submitted, and at least two batches. The default is as many as are
                answered in 2 s, up to 128 MiB of inputs or outputs. So answers come in bursts, and up to twice as many
                are kept: give less where the first ones are to come soon. What was read may wait until the next one is.
            **call: Arguments of every request: `Call`.

        Yields:
            The result of `run`. The first failure, also of ``feeds`` itself, is raised in its place: behind the answers
            to all feeds before it. A note of the error has the feed's number. Later requests are cancelled then.
            Closing the iterator cancels them too.
        """
        options = self._call(run_options, outputs, call)
        names, found, ahead = self._several(output_names, feeds, lookahead)
        submit = partial(self._submit_many, names, options)
        run = partial(self._run, names, call=options) if lookahead is None and self._takes_turns() else None
        wrap = _to_values if outputs == "device" else None
        return many.in_order(submit, found, ahead, partial(Submitted, wrap), run, wrap)

    @takes_call
    def as_completed(
        self,
        output_names: Sequence[str] | Iterable[Mapping[str, Any]] | None = None,
        feeds: Iterable[Mapping[str, Any]] | None = None,
        run_options: RunOptions | None = None,
        *,
        outputs: Literal["numpy", "device"] = "numpy",
        lookahead: int | None = None,
        **call: Unpack[Call],
    ) -> Iterator[tuple[int, PoolFuture]]:
        """Yield each feed's index and future as soon as the future is done.

        Args:
            output_names, feeds, run_options, outputs, lookahead: As for `map`.
            **call: Arguments of every request: `Call`.

        Yields:
            ``(index, future)``. The future of a failed request raises its error. An error of ``feeds`` itself, or of
            one that is no request, ends them, and is raised behind all answers. Closing the iterator cancels the
            unfinished requests.
        """
        options = self._call(run_options, outputs, call)
        names, found, ahead = self._several(output_names, feeds, lookahead)
        submit = partial(self._submit_many, names, options)
        return many.as_done(submit, found, ahead, _to_values if outputs == "device" else None)

    @takes_call
    def map_rows(
        self,
        output_names: Sequence[str] | Mapping[str, Any] | None = None,
        arrays: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        rows: int | None = None,
        lookahead: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        **call: Unpack[Call],
    ) -> list[NDArray[Any]]:
        """Run the model on the rows of arrays, some rows at a time on all sessions, and return the outputs of all rows.

        Each output gets one array, into which the runs' outputs are copied. Only the runs under way need further
        memory. If a run fails, the others are cancelled.

        Args:
            output_names: As for `run`. May be left out: ``map_rows({"x": x})``.
            arrays: An array ``[n, ...]`` for each input, all with the same n. Runs use the memory of C-contiguous
                arrays in place. A list of n rows of different lengths may stand for an array: then each row is a
                request, which `Batching` with ``pad`` joins with those of similar lengths.
            run_options: As for `run`.
            rows: Rows of each run, 1 or more; default: found while it runs, from 32 on, by the time of the runs. With
                batching it is its ``max_size``, and else, with a ``priority`` below 0, as many as take 10 ms. The last
                run has the remaining rows. With n = 0 the model runs once, with empty inputs. Of rows of different
                lengths each is a request of its own.
            lookahead: How many runs are submitted before the first one's outputs are taken; default: two for each that
                can be under way, with batching two batches. On the CPU, runs are one after
                another in the caller's thread; of rows of different lengths only as long as they take less than 0.2 ms.
            progress: Called in this thread as ``progress(done, n)`` when the outputs of a run are there: so many rows
                of n are done. An error of it ends the call.
            **call: Arguments of every request: `Call`.

        Returns:
            An array ``[n, ...]`` for each output, of the model's dtype.

        Raises:
            As `run`: the first failure, in the order of the rows; of rows of different lengths any.
            DeadlineExceeded: The call took longer than ``timeout``.
            InvalidArgument: The arrays have different n. Or an output does not have one row for each row of the inputs:
                the model's graph shows that, or a few runs of random inputs before the first call for this output. Or
                its other dimensions differ between runs.
        """
        if arrays is None:
            output_names, arrays = None, _feed_alone(output_names)
        if not (progress is None or callable(progress)):
            raise InvalidType(f"progress is a function of the rows that are done and of all rows, not {progress!r}")
        found = many.Rows(arrays)
        options = self._call(run_options, "numpy", call)
        fixed = self._batch_size if rows is None and self._batch_size > 1 else rows
        fixed = 1 if found.ragged else fixed
        size = many.RunSize(fixed, background=call.get("priority", 0) < 0)
        timeout = call.get("timeout")
        end = None if timeout is None else time.monotonic() + timeout

        def names() -> Sequence[str]:
            return output_names or [each.name for each in self.get_outputs()]  # type: ignore[return-value]

        def left() -> CoreCall | None:
            return (
                options
                if end is None or options is None
                else options._replace(timeout=max(0.0, end - time.monotonic()))
            )

        def run(feed: Mapping[str, Any]) -> list[Any]:
            return self._run(output_names, feed, left())

        def run_apart(wanted: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
            return self._run(wanted, feed, left())

        def submit(some: list[Mapping[str, Any]], to: Submitted) -> None:
            self._submit_many(output_names, left(), some, to)

        self._check_rows(names(), run_apart)
        joined = many.JoinedRows(found.count, names, progress)
        pieces = found.cut(size)
        if lookahead is None and self._takes_turns():
            many.run_rows(run, pieces, size, joined, not found.ragged)  # side by side large runs would take memory
        ahead = self._ahead(lookahead, max(1, self._batch_size // size.rows), self._length if found.ragged else None)
        many.submit_rows(submit, pieces, size, ahead, joined)
        return joined.outputs

    def _check_rows(self, names: Sequence[str], run: Callable[[Sequence[str], Mapping[str, Any]], list[Any]]) -> None:
        """Refuse outputs that have no row for each row of the inputs."""
        reasons = self._members.no_table  # of one model
        if new := [name for name in names if name not in reasons]:
            known = [each.name for each in self.get_outputs()]
            new = [name for name in known if name in new]  # the run refuses others
            from ortmulti.pool.rows import Rows

            verdict = Rows(self._members.source, self._members.description, run).of_table(new)
            reasons.update(dict.fromkeys(new, ""), **verdict.reasons())
        for reason in map(reasons.get, names):
            if reason:
                raise InvalidArgument(
                    f"{reason}. map_rows needs a row of output for each row of input: name others in output_names, or "
                    "use map"
                )

    def warmup(self, warmup: Warmup | None = None) -> None:
        """Run every session, all at the same time and past the queue, so that the first requests find them warm.

        Args:
            warmup: The inputs and the number of runs; default: `Warmup()`.

        Raises:
            Error: As `InferenceSession.run`; see also `Warmup`. If the model refuses random inputs: ``samples``.
        """
        checks.instance("warmup", warmup, Warmup, optional=True)
        self.wait_ready()
        self._members.warm_up(warmup or Warmup())

    def stats(self, latency_buckets: Sequence[float] | None = None) -> PoolStats:
        """Return statistics since the pool was made: counts, waits and latencies. Works after `close`, too.

        Args:
            latency_buckets: Upper bounds of the latencies' buckets in seconds, ascending; default: 19 from 10
                microseconds to 10 seconds.

        Raises:
            InvalidArgument, InvalidType: Bounds that cannot be.
        """
        from ortmulti.pool.stats import PoolStats, bounds_ns

        return PoolStats._from_core(self._members.stats(bounds_ns(latency_buckets)), time.monotonic() - self._start)

    async def __aenter__(self: _Self) -> _Self:
        (_event_loops or _import_event_loops()).running_loop()  # else there would be an error at the end
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it in another thread, so that the event loop, which is asyncio's, can have requests answered."""
        import asyncio

        await asyncio.to_thread(self.close)

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or all of its sessions are closed."""
        return self._members.closed()

    def _call(self, run_options: RunOptions | None, outputs: Literal["numpy", "device"], call: Call) -> CoreCall | None:
        """Return the core's form of a request's arguments; None where all have their defaults."""
        if run_options is None and outputs == "numpy" and not call:
            return None
        checks.choice("outputs", outputs, ("numpy", "device"))
        on_device = outputs == "device"
        return core_call(call, run_options, on_device, self._members.timeline, 3)

    def _model(self) -> str:
        """The model's name in spans."""
        return self._members.model.strip("'")

    def _span(self) -> RequestSpan | None:
        return None if _begin_span is None else _begin_span(self._model(), self.version)

    def _run(self, output_names: object, input_feed: Mapping[str, Any], call: CoreCall | None) -> list[Any]:
        if _begin_span is not None and (span := self._span()) is not None:
            future = self._submit(output_names, input_feed, None, False, False, call, span)
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise
        while True:
            core = self._members.core
            try:
                return core.run(output_names, input_feed, call)
            except ClosedError:
                if core is self._members.core:
                    raise  # else with the next model

    def _submit(
        self,
        output_names: object,
        input_feed: Mapping[str, Any],
        wait: float | None,
        limited: bool,
        on_device: bool,
        call: CoreCall | None,
        span: RequestSpan | None = None,
    ) -> PoolFuture:
        if not callbacks.start():  # its thread delivers answers
            raise ClosedError(_ENDING)
        if _begin_span is not None and span is None:
            span = self._span()
        future = PoolFuture(_to_values if on_device else None)
        try:
            while future._request is None:
                core = self._members.core
                try:
                    future._request = core.submit(output_names, input_feed, wait, limited, call)
                except ClosedError:
                    if core is self._members.core:
                        raise  # else with the next model
        except BaseException as error:
            if span is not None:
                span.fail(error)
            raise
        if span is not None:
            when_answered(future._request, span.end)
        return future

    def _submit_many(
        self, output_names: object, call: CoreCall | None, feeds: list[Mapping[str, Any]], to: Submitted
    ) -> None:
        """Submit requests; an error takes the place of what cannot be one."""
        if not callbacks.start():
            raise ClosedError(_ENDING)
        spans: list[RequestSpan | None] = []
        requests = to.requests
        core: _core.Pool | None = None
        try:
            if _begin_span is not None:
                spans += [self._span() for _ in feeds]
            while core is not (present := self._members.core):
                core = present
                if not requests:
                    core.submit_many(output_names, feeds, call, requests)
                    continue
                for i, request in enumerate(requests):
                    if isinstance(request, ClosedError):  # with the next model
                        again: list[PoolRequest | Exception] = []
                        core.submit_many(output_names, [feeds[i]], call, again)
                        requests[i] = again[0]
        except Error as error:  # a repository's model was unloaded; those before are answered
            requests[:] = [error if isinstance(one, ClosedError) else one for one in requests]
            requests += [error] * (len(feeds) - len(requests))
        for span, request in zip(spans, to.requests, strict=False):  # none, without spans
            if span is None:
                continue
            if isinstance(request, Exception):
                span.fail(request)
            else:
                when_answered(request, span.end)

    def _several(
        self, output_names: object, feeds: object, lookahead: int | None
    ) -> tuple[object, Iterator[Mapping[str, Any]], many.Ahead]:
        """Names of outputs, feeds, and how many of these are read ahead."""
        if feeds is None:
            output_names, feeds = None, output_names
        if isinstance(feeds, Mapping) or not isinstance(feeds, Iterable):
            raise InvalidType(f"feeds is a list or another iterable of dicts, one for each run, not {_kind(feeds)}")
        return output_names, iter(feeds), self._ahead(lookahead, self._batch_size, self._length)

    def _takes_turns(self) -> bool:
        """Return whether another thread of the pool would, at first, only take turns with the caller's."""
        return not self._members.on_gpu and self._members.expected == 1 and self._batch_size == 1

    @property
    def _batch_size(self) -> int:
        return 1 if self._batching is None else self._batching.max_size

    @property
    def at_once(self) -> int:
        """How many requests of one caller keep all sessions busy."""
        return self._at_once(self._batch_size)

    @property
    def together(self) -> int:
        """How many requests of one caller a queue without others has room for; at least 1."""
        room = self._members.max_queue
        return sys.maxsize if room is None else max(1, room)

    def _at_once(self, batch_size: int) -> int:
        return 2 * max(self._members.most, batch_size * self._members.expected)

    def _ahead(self, lookahead: int | None, batch_size: int, length: many.Length | None) -> many.Ahead:
        most = self._at_once(batch_size)
        if lookahead is not None and (checks.integer("lookahead", lookahead, 1) <= most or length is None):
            return many.Ahead(lookahead, None)  # the core chooses among those that wait
        return many.Ahead(most, length, lookahead)


class Pool(Membership, Requests):
    """The sessions of one model behind one request queue, as `load` returns them.

    A request goes to an idle session, on the device with the fewest busy ones. If none is idle, requests wait in order
    of arrival. A session runs one request at a time. All methods may be called from any thread. Inputs must not change
    until their request is answered. A pool is a context manager: the end of the ``with`` block closes it.
    """

    def __init__(self, members: Members, batching: Batching | None = None) -> None:
        if not hasattr(members, "core"):
            raise InvalidType(
                f"a Pool is not made from {type(members).__name__}: ortmulti.load(model, devices) returns one"
            )
        super().__init__(members, batching)
        self._was_closed = False

    def __del__(self) -> None:
        # Not a weakref.finalize: the members may refer to the pool by the traceback of a load that failed.
        if hasattr(self, "_members"):
            self._members.abandon()

    def close(self, cancel_pending: bool = False) -> None:
        """Answer all requests, and free the sessions and their weights. A second call does nothing.

        Devices that are still starting are given up. Requests that only they could answer raise `ClosedError`.

        Args:
            cancel_pending: Answer only those that run. The futures of waiting requests are cancelled; `run` and
                `run_async` raise `ClosedError`. The interpreter's exit closes pools in this way.
        """
        self._was_closed = True
        self._members.close(cancel_pending)

    def __enter__(self: _SelfPool) -> _SelfPool:
        if self._was_closed:  # one that could not be loaded is entered, and says why
            raise ClosedError("the pool is closed: load the model again")
        return self

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Pool of {self._members.model} on {', '.join(self.devices) or 'no device yet'}{state}>"


class StandIn(Requests):
    """The calls of a pool, for one that may be another at each call.

    Attributes:
        name: The model's name in spans.
    """

    name: str

    @property
    @abc.abstractmethod
    def pool(self) -> Pool:
        """The present pool."""

    _members: Any = property(attrgetter("pool._members"))
    _batching: Any = property(attrgetter("pool._batching"))
    _length: Any = property(attrgetter("pool._length"))
    _start: Any = property(attrgetter("pool._start"))

    def _model(self) -> str:
        return self.name


def members_of(pool: Pool) -> Members:
    """Return the sessions of a pool, for what keeps several pools."""
    return pool._members


def span_of(pool: Pool) -> RequestSpan | None:
    """Begin the span of a request that is not made by the pool's own calls; None: nobody wants it."""
    return pool._span()


def rows_of(pool: Pool) -> RowVerdict | None:
    """Return which outputs have rows, as `load` found it; None where it did not look."""
    return pool._rows


def operators_of(pool: Pool) -> set[str] | None:
    """Return the operators of its model, as ``"LSTM"``, with those of inner graphs; None where they cannot be read."""
    model = pool._members.source
    try:
        return None if model is None else _core.index_model(model.graph).operators
    except Error:  # such as a model in ORT's format
        return None


def _feed_alone(given: object) -> Mapping[str, Any]:
    """Accept the inputs of a call without names of outputs."""
    if isinstance(given, Mapping):
        return given
    raise InvalidType(
        "the inputs are a dict of their names and values, alone or after output_names: run({'x': x}) or run(['y'], "
        f"{{'x': x}}); got {_kind(given)} alone"
    )


def _kind(given: object) -> str:
    return "None" if given is None else type(given).__name__


def _to_values(results: list[Any]) -> list[Any]:
    return [OrtValue(result) for result in results]


def _wait(when_full: str | float) -> float | None:
    if when_full == "block":
        return None
    if when_full == "reject":
        return 0.0
    if isinstance(when_full, str):
        raise InvalidArgument(f"when_full is 'block', 'reject' or a number of seconds, not {when_full!r}")
    return checks.number("when_full", when_full)
