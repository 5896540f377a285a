"""The exceptions that ortmulti raises.

`Error` is their base. Each error code of ONNX Runtime has a class with the name that the onnxruntime package uses.
Further classes stand for failures that a caller treats differently. A class also derives from Python's built-in
exception for the same situation, so that ``except ValueError`` and ``except MemoryError`` work.
"""

from __future__ import annotations

from typing import ClassVar, Self

__all__ = [
    "ClosedError",
    "DeadlineExceeded",
    "DeviceError",
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Error",
    "Fail",
    "ForkError",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "InvalidType",
    "LibraryError",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "NotLoaded",
    "NotOptimizable",
    "OutOfMemory",
    "QueueFull",
    "RuntimeException",
    "WeightsError",
]

_PUBLIC = {
    500: "the request failed",
    503: "the service cannot take the request now",
    504: "not answered in time",
}


def without_folders(message: str) -> str:
    """Return the first line of a message without ONNX Runtime's prefix and without folders of this host."""
    import re  # after an error only

    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", message).partition("\n")[0]
    text = re.sub(r"^running .+? on \w+(:\d+)?: ", "", text)
    # Folders of an unquoted path may have blanks, which its file's ending shows.
    text = re.sub(r"(?<![\w./'\"])/(?:[^/:'\"]*[^/:'\"\s]/)+(?=[^/:'\"]*\.(?:onnx\w*|ort|data|bin)\b)", "", text)
    quoted = re.sub(r"(['\"])(?:/[^'\"]*/|[^'\"]*/(?=[^'\"/]*\.(?:onnx\w*|ort|data|bin)\1))", r"\1", text)
    return re.sub(r"(?<![\w./])/(?:[^\s/]+/)+", "", quoted)


class Error(Exception):
    """Base of every exception that ortmulti raises."""

    _code: ClassVar[str] = ""  # number and name of ONNX Runtime's code
    _status: ClassVar[int] = 500

    @property
    def http_status(self) -> int:
        """The status code of an answer to a client whose request raised it.

        422: the request is wrong. 404: there is no such model. 503: not now. 504: too late. 500: any other failure.
        """
        return self._status

    @property
    def public(self) -> str:
        """What to tell a client: of a wrong request the first line, without folders of this host."""
        if self.http_status >= 500:
            return _PUBLIC[self.http_status]
        return without_folders(str(self))

    @classmethod
    def _of_runtime(cls, message: str) -> Self:
        """Make the error with the prefix that onnxruntime's messages have; classes without a code have none."""
        if cls._code and not message.startswith("[ONNXRuntimeError]"):
            message = f"[ONNXRuntimeError] : {cls._code} : {message}"
        return cls(message)


class Fail(Error):
    """ONNX Runtime's code FAIL: a failure that no other code describes."""

    _code = "1 : FAIL"


class InvalidArgument(Error, ValueError, RuntimeError):
    """A name, shape, type or option that does not exist or does not fit. ONNX Runtime's code INVALID_ARGUMENT.

    It is a RuntimeError because onnxruntime raises a plain RuntimeError for many such arguments.
    """

    _status = 422
    _code = "2 : INVALID_ARGUMENT"


class InvalidType(InvalidArgument, TypeError):
    """An argument of the wrong type, such as an array whose dtype is not the one that the model declares."""


class NoSuchFile(Error, FileNotFoundError):
    """The model does not exist or cannot be read. ONNX Runtime's code NO_SUCHFILE."""

    _code = "3 : NO_SUCHFILE"


class NoModel(Error):
    """ONNX Runtime's code NO_MODEL."""

    _code = "4 : NO_MODEL"


class EngineError(Error):
    """ONNX Runtime's code ENGINE_ERROR."""

    _code = "5 : ENGINE_ERROR"


class RuntimeException(Error, RuntimeError):
    """A failure while creating or running a session. ONNX Runtime's code RUNTIME_EXCEPTION."""

    _code = "6 : RUNTIME_EXCEPTION"


class InvalidProtobuf(Error, ValueError):
    """The bytes or the file are not an ONNX model. ONNX Runtime's code INVALID_PROTOBUF."""

    _code = "7 : INVALID_PROTOBUF"


class ModelLoaded(Error):
    """ONNX Runtime's code MODEL_LOADED."""

    _code = "8 : MODEL_LOADED"


class NotImplemented(Error, NotImplementedError):
    """This ONNX Runtime or provider lacks an operator, type or call. Code NOT_IMPLEMENTED."""

    _code = "9 : NOT_IMPLEMENTED"


class DeviceReset(Error):
    """The device was reset under the session. ONNX Runtime's code DEVICE_RESET."""

    _code = "15 : DEVICE_RESET"


class InvalidGraph(Error, ValueError):
    """The model is ONNX, but its graph is not valid. ONNX Runtime's code INVALID_GRAPH."""

    _code = "10 : INVALID_GRAPH"


class EPFail(Error):
    """An execution provider failed. ONNX Runtime's code EP_FAIL."""

    _code = "11 : EP_FAIL"


class ModelLoadCanceled(Error):
    """Loading was cancelled. ONNX Runtime's code MODEL_LOAD_CANCELED."""

    _code = "12 : MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(Error):
    """ONNX Runtime's code MODEL_REQUIRES_COMPILATION."""

    _code = "13 : MODEL_REQUIRES_COMPILATION"


class NotFound(Error):
    """ONNX Runtime's code NOT_FOUND."""

    _status = 404
    _code = "14 : NOT_FOUND"


class NotLoaded(NotFound):
    """A repository has the model, and it takes no requests: it is being loaded, was unloaded, or its load failed."""

    _status = 503


class LibraryError(Error, ImportError):
    """ONNX Runtime, or a library that it needs, is missing or cannot be used; the message says how to get it."""


class DeviceError(Error, RuntimeError):
    """A device does not exist or cannot be used."""

    _status = 503


class OutOfMemory(DeviceError, MemoryError):
    """A device or the host lacks free memory; the message says how much there is."""


class ClosedError(Error, ValueError):
    """A session or pool was used after it was closed."""

    _status = 503


class ForkError(Error, RuntimeError):
    """A forked child process used a session or pool of its parent, which does not survive a fork."""


class NotOptimizable(Error):
    """The optimized form of a model cannot be made, saved or used; the message says why. The model may be fine."""


class WeightsError(Error, OSError):
    """A file of weights cannot be read, is too short or was changed while loading. Or a store does not give it."""

    _status = 503


class QueueFull(Error):
    """A pool's queue had no room for a further request, now or within the given time."""

    _status = 503


class DeadlineExceeded(Error, TimeoutError):
    """A pool did not answer a request within its ``timeout``."""

    _status = 504
