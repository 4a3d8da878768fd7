"""A server of one file on this machine that can be made to misbehave in the ways servers do."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from plm_embed.io.download import BLOCK

CONTENT = np.random.default_rng(1).bytes(20 * BLOCK)


class FileServer(ThreadingHTTPServer):
    """Serves `content` at every path but /absent.pt, or `files`; the other attributes make it
    misbehave.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.files: dict[str, bytes] = {}  # by name, in place of `content`; no others
        self.etag: str | None = '"v1"'
        self.ranges = True
        self.length = True
        self.announced = ""  # in place of the length
        self.claims = 0  # bytes announced beyond the true length
        self.cuts: list[int] = []  # drop the next connections after so many bytes
        self.asked: list[str] = []  # the Range of each request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/esm2.pt"


class Handler(BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        served = self.server
        wanted = self.headers.get("Range", "")
        served.asked.append(wanted)
        content = served.files.get(self.path[1:], served.content)
        if self.path == "/absent.pt" or (served.files and self.path[1:] not in served.files):
            self.send_error(404)
            return
        start = 0
        if wanted and served.ranges and self.headers.get("If-Range") == served.etag:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # type: ignore[index]
            if start >= len(content):
                self.send_error(416)
                return
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if served.length:
            self.send_header("Content-Length", served.announced or str(len(body) + served.claims))
        if served.etag:
            self.send_header("ETag", served.etag)
        self.send_header("Connection", "close")
        self.end_headers()
        if served.cuts:
            body = body[: served.cuts.pop(0)]
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
