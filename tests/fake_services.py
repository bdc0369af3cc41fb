"""Services that misbehave on purpose: each request gets the next scripted behaviour, the last one for ever after."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[[BaseHTTPRequestHandler, Any], None]
"""Answers one request; the second argument is its JSON body, None for a GET."""


class Fake(ThreadingHTTPServer):
    """``requests`` are the JSON bodies that came, ``headers`` their headers."""

    daemon_threads = True

    def __init__(self, behaviours: Sequence[Behaviour]) -> None:
        self.behaviours = list(behaviours)
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.lock = threading.Lock()
        self.most_at_once = 0
        self.at_once = 0
        super().__init__(("127.0.0.1", 0), FakeHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave on purpose."""


class FakeHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.behave(None)

    def do_POST(self) -> None:
        self.behave(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def behave(self, body: Any) -> None:
        fake = self.server
        assert isinstance(fake, Fake)
        with fake.lock:
            behaviour = fake.behaviours.pop(0) if len(fake.behaviours) > 1 else fake.behaviours[0]
            fake.requests.append(body)
            fake.headers.append(dict(self.headers))
            fake.paths.append(self.path)
            fake.at_once += 1
            fake.most_at_once = max(fake.most_at_once, fake.at_once)
        try:
            behaviour(self, body)
        finally:
            with fake.lock:
                fake.at_once -= 1

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def fake_service(*behaviours: Behaviour) -> Iterator[Fake]:
    server = Fake(behaviours)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply(handler: BaseHTTPRequestHandler, status: int, content: bytes, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)


def rewards_of(body: Any) -> list[float]:
    """What a well-behaved fake answers: the number of words of each response."""
    return [float(len(sample["response"].split())) for sample in body["samples"]]


def good(handler: BaseHTTPRequestHandler, body: Any) -> None:
    reply(handler, 200, json.dumps({"request_id": body["request_id"], "rewards": rewards_of(body)}).encode())


def with_rewards(make: Callable[[Any], Any], **more: Any) -> Behaviour:
    """A 200 whose ``rewards`` are what ``make`` makes of the request."""

    def behave(handler: BaseHTTPRequestHandler, body: Any) -> None:
        reply(handler, 200, json.dumps({"request_id": body["request_id"], "rewards": make(body)} | more).encode())

    return behave


def status(code: int, content: str = "", **headers: str) -> Behaviour:
    return lambda handler, body: reply(handler, code, content.encode(), **headers)


def raw(content: bytes, length: int | None = None) -> Behaviour:
    """A 200 with this body; ``length``: what it claims to be."""

    def behave(handler: BaseHTTPRequestHandler, body: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content) if length is None else length))
        handler.end_headers()
        handler.wfile.write(content)

    return behave


def sleeping(seconds: float) -> Behaviour:
    return lambda handler, body: time.sleep(seconds)


def dripping(seconds: float) -> Behaviour:
    """A byte now and then, which no time limit of a socket ends."""

    def behave(handler: BaseHTTPRequestHandler, body: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)

    return behave
