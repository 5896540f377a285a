"""The Open Inference Protocol over a repository of models, for clients that exist: ``pip install "ortmulti[serve]"``.

`app` is an ASGI application, also beside routes of your own. `add_to` adds the protocol's service to a gRPC server.
``ortmulti serve`` runs both: docs/how-to/serve.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortmulti.repository import ModelRepository
    from ortmulti.serve.asgi import Application
    from ortmulti.serve.limits import Limits
    from ortmulti.text.model import TextModel

__all__ = ["add_to", "app"]


def app(
    models: ModelRepository,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    explicit: bool = False,
    access_log: bool = False,
    texts: Mapping[str, TextModel] | None = None,
) -> Application:
    """Make an ASGI application that serves the models by the Open Inference Protocol, at ``/v2``, and ``/metrics``.

    Models of texts are served at ``/v1/embeddings``, ``/embed``, ``/rerank``, ``/predict`` and so on, too.

    It needs no package itself. Mount it in FastAPI or Starlette with ``api.mount("/", ortmulti.serve.app(models))``.
    The server that runs it has the connections: give that server limits of headers, times and connections of its own.

    Args:
        models: What is served. Models may be added and removed meanwhile.
        limits: What a client may ask for at most; default: `Limits`. Here ``memory``, ``body``, ``json``, ``tensors``
            and ``concurrent`` hold; the others are those of ``ortmulti serve``.
        token: Clients send it as ``Authorization: Bearer TOKEN``, but for health; default: none is needed.
        explicit: Whether clients may load and unload models; default False.
        access_log: Whether each request makes a record of the logger ``ortmulti.serve.access``; default False.
        texts: Models of texts by their names, such as those that `ortmulti.text.load` returns; default: none.

    Raises:
        InvalidArgument: The token is empty, or has blanks or control characters.
        InvalidType: One of them is something else.
        LibraryError: This build has no server: headers were missing as it was built.
    """
    from ortmulti.serve.arguments import check
    from ortmulti.serve.asgi import Application
    from ortmulti.serve.service import Service

    check(models, limits, token)
    service = Service(models, explicit=explicit)
    if texts:
        from ortmulti.serve.arguments import texts_of

        service.texts.update(texts_of(texts))
    return Application(service, limits, token, access_log=access_log)


def add_to(
    server: Any,
    models: ModelRepository,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    explicit: bool = False,
) -> None:
    """Add the protocol's gRPC service, and gRPC's health service, to a server of `grpc.aio` before it starts.

    The server itself limits messages (``grpc.max_receive_message_length``, 4 MiB by default) and requests at a time
    (``maximum_concurrent_rpcs``), too.

    Args:
        server: Of `grpc.aio`.
        models: As for `app`; so are the others.

    Raises:
        InvalidArgument, InvalidType: As for `app`.
        LibraryError: grpcio or protobuf is missing, or this build has no server.
    """
    from ortmulti.errors import LibraryError

    try:
        from ortmulti.serve import grpc
    except ImportError as error:
        raise LibraryError(
            f'gRPC needs more packages ({error}): pip install "ortmulti[serve]" grpcio', name="grpc"
        ) from None
    from ortmulti.serve.arguments import check
    from ortmulti.serve.limits import Limits
    from ortmulti.serve.service import Service

    check(models, limits, token)
    grpc.add_to(server, Service(models, explicit=explicit), limits or Limits(), token)
