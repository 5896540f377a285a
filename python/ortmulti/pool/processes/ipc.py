"""Messages between a pool and its workers: short ones, with shared memory as file descriptors."""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

__all__ = ["Channel"]

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 16
_MOST_DESCRIPTORS = 16


class Channel:
    """One end of a pair of sockets. Any thread may send, and one receives.

    Messages are pickled: both ends are the same user's processes, and no other process has the sockets.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._received = bytearray()
        self._descriptors: deque[int] = deque()

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send a message and duplicates of open files. The other end takes the files in this order.

        Raises:
            OSError: The other end is gone.
        """
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        frame = _LENGTH.pack(len(body)) + body
        with self._sending:
            if descriptors:
                sent = socket.send_fds(self._socket, [frame], list(descriptors))
                frame = frame[sent:]
            if frame:
                self._socket.sendall(frame)

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: The other end is gone.
        """
        while not (end := self._end_of_message()):
            self._receive_more()
        message = pickle.loads(memoryview(self._received)[_LENGTH.size : end].toreadonly())
        del self._received[:end]
        return message

    @property
    def has_message(self) -> bool:
        """Whether the next message has arrived."""
        return self._end_of_message() > 0

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def take_descriptor(self) -> int:
        """Return the next file of the received messages. The caller closes it."""
        return self._descriptors.popleft()

    def shut_down(self) -> None:
        """End both directions: receivers on both ends get EOFError, also in forked processes."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end is gone

    def close(self) -> None:
        """Close this end and its remaining files. Call this in the receiving thread."""
        self.shut_down()
        with self._sending:  # which may still be about to use the descriptor's number
            self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _end_of_message(self) -> int:
        """Return the end of the next message if it has arrived completely; else 0."""
        if len(self._received) < _LENGTH.size:
            return 0
        end = _LENGTH.size + int(_LENGTH.unpack_from(self._received)[0])
        return end if len(self._received) >= end else 0

    def _receive_more(self) -> None:
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        try:
            data, ancillary, _flags, _address = self._socket.recvmsg(_CHUNK, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            raise EOFError from None
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                self._descriptors.extend(found)
        if not data:
            raise EOFError
        self._received += data
