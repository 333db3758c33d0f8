"""A TCP proxy that loses a server's answers: the server executes a request, and the client never learns of it.

::

    proxy = LossyProxy(("127.0.0.1", server.port), answer=b"COMMIT")
    with proxy.losing():
        ...  # a connection breaks when the server answers with COMMIT

It runs in threads, so it works with any event loop or none. It serves ``lost_answer`` of the conformance kit;
``CuttingProxy`` cuts at any byte.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

_CHUNK: Final = 64 * 1024
_JOIN_SECONDS: Final = 10.0


class Answers(Protocol):
    """Finds the answers to lose on one connection, for protocols where a byte string is not enough."""

    def sent(self, data: bytes) -> None:
        """Observe bytes from the client."""

    def is_answer(self, data: bytes) -> bool:
        """Whether these bytes of the server belong to an answer that the proxy shall lose."""


class LossyProxy:
    """Listens on 127.0.0.1 and forwards to the target, in both directions.

    :param target: host and port, or the path of a Unix socket.
    :param answer: bytes that every answer to lose contains, or a factory of ``Answers``, called for each connection.
    :param port: the port to listen on; a free one by default.
    """

    def __init__(
        self, target: tuple[str, int] | str, *, answer: bytes | Callable[[], Answers], port: int = 0
    ) -> None:
        self.lost = 0
        """The number of lost answers."""
        self._target = target
        self._answer = answer
        self._losing = False
        self._sockets: set[socket.socket] = set()
        self._pumps: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=100)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """The port."""
        port: int = self._listener.getsockname()[1]
        return port

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Within the context, lose such answers and close their connections."""
        self._losing = True
        try:
            yield
        finally:
            self._losing = False

    def cut(self) -> int:
        """Close every open connection, and return their number. New ones are still accepted."""
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            _shut(one)
        return len(sockets) // 2

    def close(self) -> None:
        """Stop accepting connections, and close all."""
        # shutdown wakes a thread that waits in accept(); close does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets, pumps = list(self._sockets), list(self._pumps)
        for one in sockets:
            _shut(one)
        for pump in pumps:  # the pumps close the sockets
            pump.join(_JOIN_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connected()
            except OSError:
                client.close()
                continue
            for one in (client, server):
                # Without TCP_NODELAY, Nagle's algorithm would delay the second of two pieces by 40 ms.
                if one.family != socket.AF_UNIX:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            answers = _Containing(self._answer) if isinstance(self._answer, bytes) else self._answer()
            for work in (self._requests, self._answers):
                pump = threading.Thread(target=work, args=(client, server, answers), daemon=True)
                with self._lock:
                    self._pumps = [other for other in self._pumps if other.is_alive()] + [pump]
                    pump.start()

    def _connected(self) -> socket.socket:
        if isinstance(self._target, str):
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:
                server.close()
                raise
            return server
        return socket.create_connection(self._target)

    def _requests(self, client: socket.socket, server: socket.socket, answers: Answers) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                answers.sent(data)
                server.sendall(data)
        self._end(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, answers: Answers) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_CHUNK):
                if answers.is_answer(data) and self._losing:
                    self.lost += 1
                    break
                client.sendall(data)
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        """Wake the thread of the other direction; the second one to end closes the sockets."""
        for one in sockets:
            _shut(one)
        with self._lock:
            second = self._sockets.isdisjoint(sockets)
            self._sockets.difference_update(sockets)
        if second:
            for one in sockets:
                one.close()


class _Containing:
    """Answers that contain a byte string, which may arrive in two pieces."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._tail = b""

    def sent(self, data: bytes) -> None:
        """Requests do not matter."""

    def is_answer(self, data: bytes) -> bool:
        received = self._tail + data
        self._tail = received[len(received) - len(self._text) + 1 :] if len(self._text) > 1 else b""
        return self._text in received


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
