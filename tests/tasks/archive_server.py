"""A local HTTP server that misbehaves as it is told to, for the tests of downloads."""

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What the server does; tests change it between requests.

    content: its file. ranges: whether it answers Range, and wrong_ranges wrongly, from 0.
    drops: for each coming request after how many bytes the connection ends; None is never.
    status: an error to answer everything with. unknown_length: it does not announce the length.
    """

    content: bytes
    ranges: bool = True
    wrong_ranges: bool = False
    drops: list[int | None] = field(default_factory=list)
    status: int = 0
    unknown_length: bool = False
    stalls: bool = False  # when it drops: says nothing more, until `released`
    requests: list[str | None] = field(default_factory=list)  # the Range of each
    released: threading.Event = field(default_factory=threading.Event)
    stalled: threading.Event = field(default_factory=threading.Event)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self):
        site = self.site
        asked = self.headers["Range"]
        site.requests.append(asked)
        if site.status:
            self.send_error(site.status)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and site.ranges else 0
        if start >= len(site.content):
            self.send_error(416)
            return
        self.answer(start, partial=bool(asked) and site.ranges)

    def answer(self, start, partial):
        site, end = self.site, len(self.site.content)
        start = 0 if site.wrong_ranges else start
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        if not site.unknown_length:
            self.send_header("Content-Length", str(end - start))
        self.end_headers()
        drop = site.drops.pop(0) if site.drops else None
        with suppress(ConnectionError):  # those who ask may stop listening
            self.wfile.write(site.content[start:] if drop is None else site.content[start:][:drop])
        if drop is not None and site.stalls:
            site.stalled.set()
            site.released.wait(20)

    def log_message(self, *_):
        pass


@contextmanager
def serving(content, name="archive.tar.gz"):
    """A site on this machine, while the block runs."""
    site = Site(content)
    handler = type("OwnHandler", (Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}/files/{name}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield site
        finally:
            site.released.set()
            server.shutdown()
            thread.join()
