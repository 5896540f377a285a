"""The members of a pool: sessions that are created for it, warmed up and handed over when ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ortmulti import _core
from ortmulti._runtime import native
from ortmulti._runtime.threads import Task
from ortmulti.create.request import CreationRequest, Progress
from ortmulti.devices.device import Device
from ortmulti.errors import ClosedError
from ortmulti.interface.session import InferenceSession
from ortmulti.loading import ways
from ortmulti.loading.creation import Creation
from ortmulti.options.session_options import RunOptions
from ortmulti.pool.first_runs import FirstRuns
from ortmulti.timeline import Timeline

__all__ = ["MemberCreation"]


def _ignore(*_: object) -> None:
    pass


class _Cancelled(Exception):  # noqa: N818  (no error, but the way out)
    pass


class MemberCreation:
    """The creation of a pool's members. Each session joins the pool when it has warmed up.

    `cancel` and `wait` may be called from any thread while it runs.

    Args:
        request: The arguments.
        timeline: Receives the spans.
        first_runs: What each session runs before it takes requests, and how it serves them.
        join: Called with this creation for each ready session and its place, from any thread. It calls `let_in`, and
            owns the session unless it raises.
        first: The GPU whose session comes first: the others' contexts wait until one member has joined. None: all
            contexts are made at once.
        keep_going: Whether the other sessions are created when one fails.
        one_after_another: Whether the first session of a device is warm before its others run: searches for algorithms
            slow each other down. Otherwise all run at once, so that the last one is warm sooner.
        on_devices: Called when the devices are known, with the device of each session.
        not_joined: Called from any thread for each session that failed, with ``keep_going``.
        progress, bytes_loaded: As in `Creation`.
    """

    def __init__(
        self,
        request: CreationRequest,
        timeline: Timeline,
        first_runs: FirstRuns,
        join: Callable[[MemberCreation, int, InferenceSession], None],
        *,
        first: int | None = None,
        keep_going: bool = False,
        one_after_another: bool = False,
        on_devices: Callable[[Sequence[Device]], object] = _ignore,
        not_joined: Callable[[int, BaseException], object] = _ignore,
        progress: Progress | None = None,
        bytes_loaded: Callable[[int, int], object] | None = None,
    ) -> None:
        self.sessions: dict[int, InferenceSession] = {}
        """Those that have joined, by their places."""
        self._on_devices = on_devices
        self._progress = progress
        self._bytes_loaded = bytes_loaded
        self._hold = None if first is None else _core.ContextHold(first)
        self._request = request
        self._timeline = timeline
        self._first_runs = first_runs
        self._join = join
        self._keep_going = keep_going
        self._not_joined = not_joined
        self._one_after_another = one_after_another
        self._joining: list[tuple[Task, InferenceSession]] = []
        self._leading: dict[str, Task] = {}  # what has the first session of each device join
        self._end_runs: RunOptions | None = None
        self._cancelled = False
        self._closed = False
        self._error: BaseException | None = None
        self._thread: int | None = None  # in which it runs
        self._unfinished = native.Lock()
        self._unfinished.acquire()

    def run(self) -> None:
        """Create the sessions, and return when every one has joined or failed.

        Raises:
            As `load`: the first failure; with ``keep_going`` only if all failed. Members that have not joined are
                closed.
            ClosedError: It was cancelled.
        """
        self._thread = native.get_ident()
        try:
            try:
                ways.create(
                    Creation(
                        self._request,
                        self._timeline,
                        self._receive,
                        keep_going=self._keep_going,
                        hold=self._hold,
                        on_devices=self._on_devices,
                        poll=self.poll,
                        progress=self._progress,
                        bytes_loaded=self._bytes_loaded,
                    )
                )
                self._wait_for_joining()
            except _Cancelled:
                pass
            except BaseException as error:
                self._note(error)
                self.cancel()
            self._wait_for_joining()
        except BaseException:  # Ctrl-C, while it waited
            self.cancel()
            self._wait_for_joining()
            raise
        finally:
            self._release()
            self._unfinished.release()
        failure, self._error = self._error, None  # whose frames have this object
        try:
            if failure is not None and not (self._keep_going and self.sessions and not self._cancelled):
                raise failure
        finally:
            del failure
        if self._cancelled:
            raise ClosedError("the pool was closed while it was loading")

    def cancel(self) -> None:
        """End it soon: no further session begins, and ready sessions that have not joined are closed."""
        self._cancelled = True
        self._release()
        if self._end_runs is not None:
            self._end_runs.terminate = True

    def wait(self) -> None:
        """Wait until `run` has ended; return at once in its own thread."""
        if self._thread != native.get_ident():
            with self._unfinished:
                pass

    def close(self) -> None:
        """Close the sessions that have joined, and those that still do: Ctrl-C may end `run` before they have."""
        self.cancel()  # what is not in the pool yet does not come any more
        self._closed = True
        while self.sessions:
            self._close_one()

    def _close_one(self) -> None:
        try:
            _, session = self.sessions.popitem()
        except KeyError:  # another thread had the last one
            return
        session.close()

    def let_in(self, session: InferenceSession, core: _core.Pool) -> None:
        """Warm a session up, and let it take the requests of a core's pool.

        Raises:
            As the first runs, or its creation was cancelled.
        """
        serving = self._first_runs.serving
        if serving.batching is not None:
            from ortmulti.pool.rows import check_inputs

            initializers = session.get_overridable_initializers()
            check_inputs(core, serving.batching, self._request.model, session.get_inputs(), initializers)
        limit = serving.graphs
        more: dict[str, Any] = {}  # sessions that are made when they are wanted
        if session.device == "cpu":
            from ortmulti.pool import one_thread

            if serving.in_flight == 0 and one_thread.may_be_made(self._request):
                more = {"one_thread_wanted": partial(one_thread.make_behind, serving.more, self._request)}
        elif limit and session.device.startswith("cuda:"):
            from ortmulti.pool.graphs import make_behind

            make = partial(make_behind, serving.more, self._request, session._core)
            more = {"graph_wanted": make, "graph_after": limit.after, "max_graphs": limit.rule.max_shapes}

        def add(feeds: list[Mapping[str, Any]], runs: int) -> None:
            self.poll()
            core.add(session._core, serving.in_flight, feeds, runs, self._timeline._core, self._end_runs, **more)

        self._first_runs.run(session, add)

    def _receive(self, index: int, session: _core.Session | BaseException) -> None:
        """Let a session join, in a thread of its own if it warms up or is on a GPU."""
        if isinstance(session, BaseException):
            self._go_on_without(index, session)
            return
        try:
            device = session.device()
            ready = InferenceSession._from_core(session, self._timeline, self._request.options)
            if self._cancelled:
                ready.close()
            elif not self._first_runs.serving.warmup and device == "cpu":
                self._have_joined(index, ready)
            else:
                if self._end_runs is None:
                    self._end_runs = RunOptions()
                    self._end_runs.terminate = self._cancelled
                leading = self._leading.get(device) if self._one_after_another else None
                task = Task(partial(self._have_joined, index, ready, leading), "ortmulti-warmup")
                self._leading.setdefault(device, task)
                self._joining.append((task, ready))
                task.start()
        except BaseException:  # no thread, or Ctrl-C at any point of this
            self.cancel()  # before the session is closed: its thread may be running it
            session.close()
            raise

    def _go_on_without(self, index: int, error: BaseException) -> None:
        self._note(error)
        self._not_joined(index, error)

    def poll(self) -> None:
        """End the creation if it was cancelled."""
        if self._cancelled:
            raise _Cancelled

    def _have_joined(self, index: int, session: InferenceSession, leading: Task | None = None) -> None:
        if leading is not None:
            leading.wait()
        try:
            self._join(self, index, session)
            self.sessions[index] = session
            if self._closed:
                self._close_one()
        except _Cancelled:
            session.close()
        except BaseException as error:
            session.close()
            if self._cancelled:
                return
            if self._keep_going:
                self._go_on_without(index, error)
            else:
                self._note(error)
                self.cancel()
        finally:
            self._release()

    def _note(self, error: BaseException) -> None:
        # The first error counts, but a KeyboardInterrupt is never replaced by a session's failure.
        if self._error is None or (isinstance(self._error, Exception) and not isinstance(error, Exception)):
            self._error = error

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.release()

    def _wait_for_joining(self) -> None:
        for task, session in self._joining:
            if self._cancelled and task.revoke():
                session.close()
            task.wait()
