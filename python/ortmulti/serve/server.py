"""A process that serves models: HTTP and gRPC over one repository, from the first load to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import uvicorn

from ortmulti.errors import Error, InvalidArgument, without_folders
from ortmulti.remote.concurrency import interrupt_all
from ortmulti.repository import ModelRepository
from ortmulti.serve.folder import Models, ServedModel
from ortmulti.serve.grpc import Handlers, add_to
from ortmulti.serve.http import Application, Limits
from ortmulti.serve.protocol import protocol_with
from ortmulti.serve.service import Service

__all__ = ["Settings", "serve"]

LOGGER = logging.getLogger("ortmulti.serve")

# Seconds of gRPC's end: for what is under way, for clients to be told that it is one, and for idle streams.
_AS_LONG_AS_IT_TAKES = 1e6
_TO_STOP = 0.05
_FOR_STREAMS = 1.0


@dataclass(frozen=True)
class Settings:
    """Of a server.

    Attributes:
        http: ``"HOST:PORT"``; port 0 takes a free one, and "" serves no HTTP.
        grpc: The same for gRPC.
        repository: Arguments of `ModelRepository`.
        explicit: Whether clients may load and unload models.
        id: The server's name in its metadata.
        token: See `Application`.
        certificate, key: Files of TLS, for both protocols; None: plain.
        limits: See `Limits`.
        access_log: Whether each HTTP request makes a record of the logger ``ortmulti.serve.access``.
        exit_on_error: Whether a model that cannot be loaded at the start ends the server; else it serves the others.
    """

    http: str = "127.0.0.1:8000"
    grpc: str = "127.0.0.1:8001"
    repository: dict[str, Any] = field(default_factory=dict)
    explicit: bool = False
    id: str = "ortmulti"
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    limits: Limits = field(default_factory=Limits)
    access_log: bool = False
    exit_on_error: bool = True


# Called with what is served: the addresses of HTTP and of gRPC.
OnListening = Callable[[str, str], object]
# Called with how many models are there, of how many, and the name of the next one; "" when all are.
OnLoaded = Callable[[int, int, str], object]


def serve(
    models: Models, settings: Settings, on_listening: OnListening | None = None, on_loaded: OnLoaded | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; what a byte was read of is answered then. A second signal ends the process.

    Health is answered while models load. Clients see "ready" once all of them are there.

    Raises:
        Error: Models cannot be loaded, of which each is named, or an address cannot be listened on.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_Server(models, settings, on_listening, on_loaded).run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for this Python
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the server has handlers of its own


class _Server:
    def __init__(
        self, models: Models, settings: Settings, on_listening: OnListening | None, on_loaded: OnLoaded | None
    ) -> None:
        self._models = models
        self._settings = settings
        self._on_listening = on_listening or (lambda _http, _grpc: None)
        self._on_loaded = on_loaded or (lambda _there, _total, _following: None)
        if settings.certificate is not None and settings.key is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate, settings.key)
            except OSError as error:  # ssl.SSLError too
                raise InvalidArgument(
                    f"'{settings.certificate}' and '{settings.key}' are no certificate and its key: {error}"
                ) from error
        self._stop = asyncio.Event()
        self._repository = ModelRepository(**settings.repository)
        self._service = Service(self._repository, explicit=settings.explicit, reload=self._reload, name=settings.id)
        self._service.ready = False  # until all models are there

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loading: asyncio.Task[None] | None = None
        try:
            http, http_address = self._start_http()
            rpc, grpc_address = await self._start_grpc()
            listening = None if http is None else asyncio.create_task(http[0].serve(sockets=[http[1]]))
            self._on_listening(http_address, grpc_address)
            loading = asyncio.create_task(asyncio.to_thread(self._load_all))
            stopped = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if loading.done():
                    loading.result()
                    await stopped
            finally:
                self._service.ready = False
                if http is not None:
                    http[0].should_exit = True
                await asyncio.gather(*(each for each in (listening, rpc and self._stop_grpc(*rpc)) if each))
        finally:
            interrupt_all()  # a load from an object store may take minutes
            await asyncio.to_thread(self._repository.close)
            if loading is not None:  # a model that was being loaded is refused by the repository
                await asyncio.gather(loading, return_exceptions=True)

    async def _stop_grpc(self, server: grpc.aio.Server, handlers: Handlers) -> None:
        async with handlers.held():
            stopped = asyncio.create_task(server.stop(_AS_LONG_AS_IT_TAKES))
            await asyncio.sleep(_TO_STOP)
        while handlers.under_way:
            await asyncio.sleep(_TO_STOP)
        await server.stop(_FOR_STREAMS)  # which may stay open with nothing to answer
        await stopped

    def _signalled(self, number: int) -> None:
        if self._stop.is_set():
            os._exit(128 + number)
        LOGGER.info("ends, once what was received is answered; a second signal ends at once")
        self._stop.set()

    def _start_http(self) -> tuple[tuple[_Uvicorn, socket.socket] | None, str]:
        settings = self._settings
        if not settings.http:
            return None, ""
        application = Application(self._service, settings.limits, settings.token, access_log=settings.access_log)
        config = uvicorn.Config(
            application,
            http=protocol_with(settings.limits, self._service.answers),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(settings.limits.idle),
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
        )
        host, port = _address(settings.http)
        try:
            listener = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
            )
        except OSError as error:
            raise InvalidArgument(f"cannot listen on {settings.http}: {error.strerror}") from error
        return (_Uvicorn(config), listener), _described(listener)

    async def _start_grpc(self) -> tuple[tuple[grpc.aio.Server, Handlers] | None, str]:
        settings = self._settings
        if not settings.grpc:
            return None, ""
        _address(settings.grpc)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.limits.body),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", settings.limits.header),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=settings.limits.concurrent,
        )
        handlers = add_to(server, self._service, settings.limits.tensors, settings.token)
        try:
            if settings.certificate is None or settings.key is None:
                port = server.add_insecure_port(settings.grpc)
            else:
                pair = (settings.key.read_bytes(), settings.certificate.read_bytes())
                port = server.add_secure_port(settings.grpc, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise InvalidArgument(f"cannot listen on {settings.grpc}: is another server there?") from error
        await server.start()
        return (server, handlers), f"{settings.grpc.rpartition(':')[0]}:{port}"

    def _load_all(self) -> None:
        models, refused = self._models.all()
        for name, error in refused.items():
            self._refused(name, error)
        for number, model in enumerate(models.values()):
            if self._stop.is_set():
                return
            self._on_loaded(number, len(models), f"{model.name}, version {model.version}")
            try:
                self._add(model)
            except Error as error:
                if self._stop.is_set():
                    return
                refused[model.name] = error
                self._refused(model.name, error)
        if refused and self._settings.exit_on_error:
            raise _not_loaded(refused) from next(iter(refused.values()))
        self._wake_what_fits()
        self._service.ready = True
        there = len(models.keys() - refused.keys())
        self._on_loaded(there, there, "")

    def _refused(self, name: str, error: Error) -> None:
        if not self._settings.exit_on_error:  # or else one error names all of them
            LOGGER.error("%s", _not_loaded({name: error}))
            # A name that is not UTF-8 is one reason to refuse a model.
            name, reason = (text.encode(errors="replace").decode() for text in (name, without_folders(str(error))))
            self._service.refused[name] = reason

    def _add(self, model: ServedModel) -> None:
        self._note(model)
        options = {"version": model.version, **model.options}
        self._repository.add(model.name, model.model(), verify=model.check, **options)
        self._service.refused.pop(model.name, None)

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
        model = self._models.find(name)
        if name in self._repository:
            options = {"version": model.version, **model.options}
            for kept in ("protect", "idle_timeout"):
                options.pop(kept, None)
            self._repository.load(name, model.model(), options=options, verify=model.check)
            self._note(model)
        else:
            self._add(model)


def _not_loaded(refused: Mapping[str, Error]) -> Error:
    texts = [f"the model {name!r} was not loaded: {error}" for name, error in refused.items()]
    if len(texts) == 1:
        return Error(texts[0])
    names = ", ".join(map(repr, refused))
    lines = [text.partition("\n")[0] for text in texts]
    return Error("\n".join([f"{len(texts)} models were not loaded, {names}: mend or remove them", *lines]))


def _address(given: str) -> tuple[str, int]:
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(f"an address is HOST:PORT, such as 127.0.0.1:8000, not {given!r}")
    return host.strip("[]"), int(port)


def _described(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
