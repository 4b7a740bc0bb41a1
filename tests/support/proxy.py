"""A proxy before a PostgreSQL server's socket, which can cut a machine off or leave it without answers."""

import socket
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from turnkeeper.clock import SystemClock

NAME = ".s.PGSQL.5432"


class Proxy:
    """A forwarder between clients in `folder` and the server, which can be paused and cut."""

    def __init__(self, folder: Path, server: Path) -> None:
        """Listen in a folder without a server, and forward to the server that listens in `server`."""
        self._folder, self._to = folder, str(server / NAME)
        self._flowing = threading.Event()
        self._flowing.set()
        self._delay_s = 0.0
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / NAME))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """Return the URL of a database of the server, through this proxy."""
        return f"{url.partition('?')[0]}?host={quote(str(self._folder), safe='')}"

    def stall(self) -> None:
        """Forward nothing; connections stay open."""
        self._flowing.clear()

    def go_on(self) -> None:
        """Forward again, including the data of the pause."""
        self._flowing.set()

    def slow(self, delay_s: float) -> None:
        """Delay each piece by this time; 0 forwards at once."""
        self._delay_s = delay_s

    def cut(self) -> None:
        """Close every connection. New ones are possible."""
        for each in list(self._open):
            _end(each)

    def close(self) -> None:
        """Stop the proxy."""
        _end(self._listener)
        self.go_on()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._open |= {client, server}
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        self._flowing.wait()
        with suppress(OSError):
            server.connect(self._to)
            threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
            self._pump(client, server)
        for each in (client, server):
            _end(each)
            self._open.discard(each)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self._delay_s:
                    SystemClock().block(self._delay_s)
                self._flowing.wait()
                sink.sendall(data)
        for each in (source, sink):
            _end(each)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
