"""Some small web sites on this computer, which watch how they are crawled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kit.worlds import PATIENCE

PAGES = 12  # of each site


class Site(ThreadingHTTPServer):
    """A site of pages ``/0`` to ``/11``: each links to the next ones, and to the other sites.

    The first pages but the root are held back until so many of them are asked for at once: a
    crawler that does not do that is reported by `was_slow`.

    Args:
        number: which one.
        at_once: how many of its pages may be asked for at the same time.
    """

    daemon_threads = True

    def __init__(self, number: int, at_once: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.number = number
        self.others: list[Site] = []
        self.requested: list[str] = []
        self.peak = 0
        self.was_slow = False
        self._inside = 0
        self._lock = threading.Lock()
        self._together = threading.Barrier(at_once)
        self._held = at_once  # how many are still to be held back

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def page(self, path: str) -> str | None:
        """The text of a page, if there is one."""
        name = path.strip("/") or "0"
        if not name.isdecimal() or int(name) >= PAGES:
            return None
        number = int(name)
        links = [f"/{number * 2 + 1}", f"{number * 2 + 2}#part", "/0", "mailto:nobody@example.org"]
        links += [f"{other.url}/" for other in self.others]
        text = "".join(f'<a href="{link}">a link</a> ' for link in links)
        return f"<html><title>Page {number} of {self.number}</title><p>{'word ' * number}{text}"

    def enter(self, path: str) -> None:
        """A page is asked for."""
        with self._lock:
            self.requested.append(path)
            self._inside += 1
            self.peak = max(self.peak, self._inside)
            is_held = path != "/" and self._held > 0
            self._held -= is_held
        if is_held:
            try:
                self._together.wait(PATIENCE)
            except threading.BrokenBarrierError:
                self.was_slow = True

    def leave(self) -> None:
        """It is about to be answered."""
        with self._lock:
            self._inside -= 1


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.enter(self.path)
        try:
            page = self.server.page(self.path)
        finally:
            self.server.leave()
        body = b"" if page is None else page.encode()
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests' output is theirs."""


@contextmanager
def sites(count: int, at_once: int) -> Iterator[list[Site]]:
    """So many sites, each of which knows the others."""
    with ExitStack() as stack:
        all_sites = [stack.enter_context(Site(number, at_once)) for number in range(count)]
        for site in all_sites:
            site.others = [other for other in all_sites if other is not site]
            thread = threading.Thread(target=site.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(site.shutdown)
        yield all_sites
