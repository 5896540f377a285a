"""A process that serves models: HTTP and gRPC over one repository, from the first load to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.errors import Error, InvalidArgument, without_folders
from ortmulti.remote.concurrency import interrupt_all
from ortmulti.repository import ModelRepository
from ortmulti.serve.folder import Models, ServedModel
from ortmulti.serve.front import Front, in_thread
from ortmulti.serve.limits import Limits
from ortmulti.serve.rpc import Rpc
from ortmulti.serve.service import Refused, Service
from ortmulti.serve.text_models import ServedTexts
from ortmulti.serve.text_routes import described

if TYPE_CHECKING:
    from ortmulti.pool.pool import Pool

__all__ = ["Settings", "serve"]

LOGGER = logging.getLogger("ortmulti.serve")


@dataclass(frozen=True)
class Settings:
    """Of a server.

    Attributes:
        http: ``"HOST:PORT"``; port 0 takes a free one, and "" serves no HTTP.
        grpc: The same for gRPC.
        repository: Arguments of `ModelRepository`.
        explicit: Whether clients may load and unload models.
        id: The server's name in its metadata.
        token: Clients send it as ``Authorization: Bearer TOKEN``, but for health; None: nobody needs one.
        allowed_hosts: Names that a Host header may have, without ports; none: any. Health is for everybody.
        certificate, key: Files of TLS, for both protocols; None: plain.
        limits: See `Limits`.
        access_log: Whether each answer makes a record of the logger ``ortmulti.serve.access``.
        exit_on_error: Whether a model that cannot be loaded at the start ends the server; else it serves the others.
    """

    http: str = "127.0.0.1:8000"
    grpc: str = "127.0.0.1:8001"
    repository: dict[str, Any] = field(default_factory=dict)
    explicit: bool = False
    id: str = "ortmulti"
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    limits: Limits = field(default_factory=Limits)
    access_log: bool = False
    exit_on_error: bool = True


# Called with what is served: the addresses of HTTP and of gRPC.
OnListening = Callable[[str, str], object]
# Called with how many models are there, of how many, and the name of the next one; "" when all are, and then with
# lines on what the models of texts are, and on those that are not served.
OnLoaded = Callable[[int, int, str, Sequence[str]], object]


def serve(
    models: Models, settings: Settings, on_listening: OnListening | None = None, on_loaded: OnLoaded | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; what a byte was read of is answered then, within `Limits.end` seconds. A second
    signal ends the process.

    Health is answered while models load. Clients see "ready" once all of them are there.

    Raises:
        Error: Models cannot be loaded, of which each is named, or an address cannot be listened on.
    """
    asyncio.run(_Server(models, settings, on_listening, on_loaded).run())


class _Server:
    def __init__(
        self, models: Models, settings: Settings, on_listening: OnListening | None, on_loaded: OnLoaded | None
    ) -> None:
        self._models = models
        self._settings = settings
        self._on_listening = on_listening or (lambda _http, _grpc: None)
        self._on_loaded = on_loaded or (lambda *_loaded: None)
        self._stop = asyncio.Event()
        self._repository = ModelRepository(**settings.repository)
        self._service = Service(self._repository, explicit=settings.explicit, reload=self._reload, name=settings.id)
        self._service.ready = False  # until all models are there
        self._service.coming = None
        self._front: Front | None = None
        self._putting = threading.Lock()  # so that of two loads of a name the later one stays

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loading: asyncio.Task[None] | None = None
        try:
            self._front, addresses = self._listen()
            self._on_listening(*addresses)
            loading = asyncio.create_task(asyncio.to_thread(self._load_all))
            stopped = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if loading.done():
                    loading.result()
                    await stopped
            finally:
                self._service.ready = False
                interrupt_all()  # a load from an object store may take minutes
                await self._front.end()
        finally:
            await in_thread(self._repository.close)
            if loading is not None:  # a model that was being loaded is refused by the repository
                await asyncio.wait({loading}, timeout=_LOAD_ENDS)
                if not loading.done():
                    LOGGER.warning("what was being loaded is given up: a faster form, for example, takes minutes")
                    _end_now(0)  # the cache removes what is left of it
                loading.exception()

    def _signalled(self, number: int) -> None:
        if self._stop.is_set():
            _end_now(128 + number)
        LOGGER.info("ends, once what was received is answered; a second signal ends at once")
        self._stop.set()

    def _listen(self) -> tuple[Front, tuple[str, str]]:
        settings = self._settings
        _allow_descriptors(settings.limits.connections)
        sockets = _inherited() or {
            protocol: [_listener(address)] if address else []
            for protocol, address in (("http", settings.http), ("grpc", settings.grpc))
        }
        if not any(sockets.values()):
            raise InvalidArgument("a server needs an address: give HOST:PORT for HTTP or gRPC, not off for both")
        http, grpc = (", ".join(map(_described, each)) for each in (sockets.get("http", []), sockets.get("grpc", [])))
        front = Front(
            self._service,
            settings.limits,
            settings.token,
            rpc=Rpc(self._service),
            http=[each.detach() for each in sockets.get("http", [])],
            grpc=[each.detach() for each in sockets.get("grpc", [])],
            allowed_hosts=settings.allowed_hosts,
            certificate=settings.certificate,
            key=settings.key,
            access_log=settings.access_log,
        )
        return front, (http, grpc)

    def _load_all(self) -> None:
        models, refused = self._models.all()
        self._service.text_names |= {model.name for model in models.values() if model.texts is not None}
        self._service.text_names |= refused.keys()  # which may be some
        for name, error in refused.items():
            self._refused(name, error)
        self._service.coming = set(models)
        for number, model in enumerate(models.values()):
            if self._stop.is_set():
                return
            self._on_loaded(number, len(models), f"{model.name}, version {model.version}", ())
            try:
                self._add(model)
            except Error as error:
                if self._stop.is_set():
                    return
                refused[model.name] = error
                self._refused(model.name, error)
            self._service.coming -= {model.name}
        if refused and self._settings.exit_on_error:
            raise _not_loaded(refused, bool(models.keys() - refused.keys())) from next(iter(refused.values()))
        self._wake_what_fits()
        self._service.ready = True
        assert self._front is not None
        self._front.look()
        there = len(models.keys() - refused.keys())
        lines = [described(texts) for texts in self._service.texts.values()]
        lines += [f"not served, see the log: {', '.join(map(repr, refused))}"] * bool(refused)
        self._on_loaded(there, there, "", lines)

    def _refused(self, name: str, error: Error) -> None:
        if not self._settings.exit_on_error:  # or else one error names all of them
            LOGGER.error("%s", _not_loaded({name: error}))
            # A name that is not UTF-8 is one reason to refuse a model.
            name, reason = (text.encode(errors="replace").decode() for text in (name, without_folders(str(error))))
            self._service.refused[name] = reason

    def _add(self, model: ServedModel) -> None:
        self._note(model)

        def add(options: dict[str, Any]) -> None:
            self._repository.add(model.name, model.model(), verify=partial(self._check, model), **options)

        _try_ways(model, add)
        self._service.refused.pop(model.name, None)
        self._put(model.name)

    def _check(self, model: ServedModel, pool: Pool) -> None:
        """Check a model that takes requests now. Those of texts go to its pool itself: its tokenizer belongs to it."""
        model.check(pool)
        if model.texts is None:
            self._service.texts.pop(model.name, None)
            return
        from ortmulti.text.model import TextModel

        texts = TextModel(pool, model.texts, closes=False)
        self._service.text_names.add(model.name)
        self._service.texts[model.name] = ServedTexts(model.name, texts, texts.dimensions, model.normalize)

    def _put(self, name: str) -> None:
        with self._putting, contextlib.suppress(Refused):  # unloaded meanwhile
            if self._front is not None:
                self._front.put_model(name)

    def _note(self, model: ServedModel) -> None:
        for part in model.ignored:
            LOGGER.warning("the model %r: ignored: %s", model.name, part)
        self._service.defaults[model.name] = model.defaults

    def _wake_what_fits(self) -> None:
        """Have the first requests find their models awake."""
        stats = self._repository.stats()
        free = {device.device: device.budget - device.used for device in stats.devices}
        for name, model in stats.models.items():
            asleep = [one for one in model.devices if one.state != "awake"]
            if asleep and all(one.weights <= free[one.device] for one in asleep):
                self._repository[name].wake()
                for one in asleep:
                    free[one.device] -= one.weights

    def _reload(self, name: str) -> None:
        begin = time.monotonic()
        model = self._models.find(name)
        if name in self._repository:

            def load(options: dict[str, Any]) -> None:
                for kept in ("protect", "idle_timeout"):
                    options.pop(kept, None)
                self._repository.load(name, model.model(), options=options, verify=partial(self._check, model))

            _try_ways(model, load)
            self._note(model)
            self._put(name)
        else:
            self._add(model)
        LOGGER.info("the model %r has version %s now, after %.2f s", name, model.version, time.monotonic() - begin)


def _try_ways(model: ServedModel, load: Callable[[dict[str, Any]], None]) -> None:
    *ways, last = model.ways()
    for options in ways:
        try:
            return load(options)
        except InvalidArgument as error:
            LOGGER.warning("the model %r is loaded in another way: %s", model.name, str(error).partition("\n")[0])
    return load(last)


def _not_loaded(refused: Mapping[str, Error], others: bool = False) -> Error:
    """Return the error that names all of these; ``others``: that there are models beside them."""
    lines = [f"the model {name!r} was not loaded: {error}" for name, error in refused.items()]
    if len(lines) > 1:
        lines = [line.partition("\n")[0] for line in lines]
        lines.insert(0, f"{len(lines)} models were not loaded, {', '.join(map(repr, refused))}: mend or remove them")
    lines += ["The others are served with --no-exit-on-error, or exit_on_error = false in a TOML file."] * others
    return Error("\n".join(lines))


# Seconds that a load has to end, once all is closed.
_LOAD_ENDS = 5


def _end_now(status: int) -> None:
    """End the process, whatever its threads do."""
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


# Beside connections: files of models, libraries, threads of a store.
_OTHER_DESCRIPTORS = 256


def _allow_descriptors(connections: int) -> None:
    """Raise the soft limit of open files (``ulimit -n``) to what so many connections need, as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_DESCRIPTORS
    if resource.RLIM_INFINITY != soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < wanted:
            LOGGER.warning(
                "limits.connections is %d, and this process may have %d files open: clients wait, and models do not "
                "load, once these are used up; allow it %d (ulimit -n, LimitNOFILE=), or set connections lower",
                connections, most, wanted,
            )  # fmt: skip


# systemd hands listening sockets over from this one on, and names them.
_FIRST_DESCRIPTOR = 3


def _inherited() -> dict[str, list[socket.socket]]:
    """Return the sockets of a systemd.socket unit, by their FileDescriptorName: http or grpc.

    Raises:
        InvalidArgument: One has another name.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    found: dict[str, list[socket.socket]] = {}
    for number in range(int(os.environ.get("LISTEN_FDS", "0"))):
        name = names[number] if number < len(names) else ""
        if name not in ("http", "grpc"):
            raise InvalidArgument(f"a socket of systemd's is named http or grpc (FileDescriptorName=), not {name!r}")
        found.setdefault(name, []).append(socket.socket(fileno=_FIRST_DESCRIPTOR + number))
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    return found


def _listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(f"an address is HOST:PORT, such as 127.0.0.1:8000, not {address!r}")
    host = host.strip("[]")
    try:
        return socket.create_server(
            (host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=4096
        )
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # Python adds the address
        raise InvalidArgument(f"cannot listen on {address}: {reason}: give others with --http and --grpc") from error


def _described(listener: socket.socket) -> str:
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return f"unix:{listener.getsockname()!s}"
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
