"""`ortmulti serve`: models by the Open Inference Protocol."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from ortmulti.errors import InvalidArgument, LibraryError

from .options import CustomOps, device_names, library_paths, path_or_url
from .output import print_times_in_log, say, steps


def _refuse_port(given: str | None) -> None:
    if given is not None:
        address = f"127.0.0.1:{given}" if given.isdecimal() else f"{given}:8000"
        raise InvalidArgument(f"serve has no --port and no --host: give both in one, such as --http {address}")


def serve_command(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...",
            help="An .onnx file, or its URL: s3://, gs://, az:// or https://; a folder with "
            "NAME/VERSION/model.onnx, as Triton has it, or with NAME.onnx; an exported model of texts, which is a "
            "folder with a tokenizer.json, or a folder of such; a .toml file.",
            parser=path_or_url,
            show_default=False,
        ),
    ],
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen for HTTP; off for none. [127.0.0.1:8000]")
    ] = None,
    port: Annotated[str | None, typer.Option("--port", "--host", hidden=True, callback=_refuse_port)] = None,
    grpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen for gRPC; off for none. [127.0.0.1:8001]")
    ] = None,
    devices: Annotated[str | None, typer.Option(help="all: every GPU, or else the CPU. Or a list: cpu, 0,1.")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Of each GPU, for all models: a share, or a size such as 8GiB. [0.8]")
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="The same of the host's, for models on the CPU. [0.5]")
    ] = None,
    batching: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE[:MS]",
            help="Join requests into runs of up to SIZE rows, which wait MS milliseconds for others, where no "
            "config.pbtxt or TOML file says it. [none]",
        ),
    ] = None,
    fuse: Annotated[
        Literal["fp32", "fp16"] | None,
        typer.Option(
            help="Serve the faster form of exported models of texts, fp16 with half precision. The first start makes "
            "it. [the models as they are]"
        ),
    ] = None,
    model_control: Annotated[
        Literal["none", "explicit"] | None,
        typer.Option(help="explicit: clients may load and unload models. [none]"),
    ] = None,
    exit_on_error: Annotated[
        bool | None,
        typer.Option(
            "--exit-on-error/--no-exit-on-error",
            help="End if a model cannot be loaded at the start, or serve the others. [--exit-on-error]",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The name of the only model. [that of its file or folder]")] = None,
    custom_ops: CustomOps = None,
    id: Annotated[  # Triton's word
        str | None, typer.Option(help="The server's name, for clients that look for one. [ortmulti]")
    ] = None,
    share: Annotated[
        bool | None,
        typer.Option("--share", help="Share weights on GPUs with other processes of this user."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Clients must send the token in this file: Authorization: Bearer TOKEN.")
    ] = None,
    allowed_hosts: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Refuse requests, but for health, whose Host header has another name. [any name]",
        ),
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="A PEM file, for TLS; with --tls-key.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, a PEM file.")] = None,
    access_log: Annotated[bool | None, typer.Option("--access-log", help="Print a line for each request.")] = None,
) -> None:
    """Serve models by the Open Inference Protocol (KServe's and Triton's), over HTTP and gRPC.

    Exported models of texts also have the routes of OpenAI's embeddings and of text-embeddings-inference:
    /v1/embeddings, /embed, /rerank, /predict.

    SIGTERM or Ctrl-C ends it, after the requests of which a byte was read. A second signal ends at once.
    """
    given = dict(locals())
    try:
        from ortmulti.serve.folder import Models
        from ortmulti.serve.limits import Limits
        from ortmulti.serve.server import Settings, serve
        from ortmulti.serve.toml import SETTINGS, batching_of
    except ImportError as error:
        raise LibraryError(f'a server needs more packages ({error}): pip install "ortmulti[serve]"') from None
    models = Models(places)
    settings = models.settings | {name: given[name] for name in SETTINGS.keys() & given if given[name] is not None}
    models.name = name or ""
    models.custom_ops = library_paths(settings.get("custom_ops"))
    if joins := settings.get("batching"):
        models.options["batching"] = batching_of(joins)
    models.fuse = settings.get("fuse")
    if settings.get("share"):
        models.options["share"] = "host"
    repository = {"devices": device_names(settings.get("devices", "all"))}
    models.devices = repository["devices"]
    repository |= {name: _memory(settings[name]) for name in ("gpu_memory", "host_memory") if name in settings}
    token = settings.get("token_file")
    certificate, key = (settings.get(name) for name in ("tls_certificate", "tls_key"))
    if (certificate is None) != (key is None):
        raise InvalidArgument("TLS needs both --tls-certificate and --tls-key")
    print_times_in_log()
    logging.getLogger("ortmulti.serve").setLevel(logging.INFO)
    ready = Settings(
        http=_address(settings.get("http", "127.0.0.1:8000")),
        grpc=_address(settings.get("grpc", "127.0.0.1:8001")),
        repository=repository,
        explicit=settings.get("model_control") == "explicit",
        id=str(settings.get("id", "ortmulti")),
        token=None if token is None else _token(Path(token)),
        allowed_hosts=_hosts(settings.get("allowed_hosts", ())),
        certificate=None if certificate is None else Path(certificate),
        key=None if key is None else Path(key),
        limits=Limits(**settings.get("limits", {})),
        access_log=bool(settings.get("access_log")),
        exit_on_error=bool(settings.get("exit_on_error", True)),
    )

    with steps() as step:

        def listening(http_address: str, grpc_address: str) -> None:
            addresses = [f"HTTP {http_address}"] * bool(http_address) + [f"gRPC {grpc_address}"] * bool(grpc_address)
            _say(f"listening: {', '.join(addresses)}")

        def loaded(there: int, total: int, following: str, texts: Sequence[str]) -> None:
            with contextlib.suppress(OSError):
                step(there, total, following)
            if there == total:
                _say("\n".join([f"ready: {total} model{'s' * (total != 1)}", *texts]))

        serve(models, ready, listening, loaded)


def _say(text: str) -> None:
    try:
        say(escape(text))
        sys.stdout.flush()  # whoever reads a pipe waits for it
    except OSError:  # a full disk, or a pipe that nobody reads any more
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (until the end)


def _address(text: str) -> str:
    return "" if text in ("off", "") else text


def _hosts(given: Any) -> tuple[str, ...]:
    """Return names as Host headers have them, but for ports."""
    names = [name.strip().lower() for name in (given.split(",") if isinstance(given, str) else given)]
    for name in names:
        if not re.fullmatch(r"\[?[0-9a-f:.]*:[0-9a-f:.]*\]?|[^:/\[\]]+", name) or re.fullmatch(r"[^:]*:\d+", name):
            raise InvalidArgument(
                f"a name of allowed_hosts is a host without a port, such as example.org, not {name!r}"
            )
    return tuple(f"[{name}]" if ":" in name and not name.startswith("[") else name for name in names)


def _memory(given: Any) -> Any:
    """Return a share of a text such as 0.5; sizes stay as they are."""
    try:
        return float(given) if isinstance(given, str) and float(given) <= 1 else given
    except ValueError:
        return given


def _token(path: Path) -> str:
    from ortmulti.serve.arguments import token_of

    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidArgument(f"the token's file '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidArgument(f"the token's file '{path}' is not UTF-8") from None
    return token_of(token, f"the token in '{path}'")
