"""Who answers the reward protocol here: any RewardSource behind a small HTTP server.

One batch is scored at a time, whole, as in the process that would have loaded the model itself. A token is needed for
everything but the description of the protocol. Texts are neither stored nor logged. Python's own http.server with
limits on the body, on waiting and on connections is enough for a few trainers in a network one trusts; TLS and
anything public belong in front of it.
"""

from __future__ import annotations

import hmac
import html
import json
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tightrope.config.errors import TightropeError, one_line
from tightrope.protocols import RewardSource
from tightrope.scoring.checked import NonFiniteReward, checked_rewards
from tightrope.scoring.remote_protocol import (
    HEALTH,
    OPENAPI,
    PAGE,
    REWARDS,
    AskedSample,
    Health,
    Refusal,
    RewardAnswer,
    RewardRequest,
    Said,
    openapi,
    parsed_request,
    written,
)
from tightrope.types import Prompt, Sample

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a request."""
PATIENCE = 30.0
"""Seconds that a connection may stay silent."""
CONNECTIONS = 64
"""Open at once; another one is closed again."""
PIECE = 1 << 20
LINGER = 10.0
"""Seconds for which the rest of a refused request is read and dropped: a client that is still sending reads nothing."""
PROMPT_COLUMNS = ("prompt", "messages")


class Refused(Exception):
    """A request that gets no rewards."""

    def __init__(self, status: HTTPStatus, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error


@dataclass(frozen=True)
class Service:
    """``source`` gives the numbers, ``health`` says who it is. ``token`` None: anybody may ask."""

    source: RewardSource
    health: Health
    token: str | None = field(repr=False)
    body_limit: int = BODY_LIMIT
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def permits(self, authorization: str | None) -> bool:
        if self.token is None:
            return True
        return hmac.compare_digest((authorization or "").encode(), f"Bearer {self.token}".encode())

    def answer(self, request: RewardRequest) -> RewardAnswer:
        """Raises Refused: 400 for samples that the source cannot read, 500 where it fails."""
        samples = [sample_of(asked) for asked in request.samples]
        with self.lock:
            result = self.asked(samples)
        try:
            rewards = checked_rewards(result, samples, self.health.name)
        except TightropeError as error:
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
        return RewardAnswer(request_id=request.request_id, rewards=rewards)

    def asked(self, samples: Sequence[Sample]) -> object:
        try:
            return self.source.score(samples)
        except NonFiniteReward as error:
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
        except TightropeError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        except Exception as error:
            traceback.print_exc()  # for whoever runs the server; the other side gets its last line
            told = f"{type(error).__name__}: {error}"
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, one_line(told)) from error


def sample_of(asked: AskedSample) -> Sample:
    """With the prompt's text for a row that brings no prompt of its own."""
    row = asked.row if any(name in asked.row for name in PROMPT_COLUMNS) else {**asked.row, "prompt": asked.prompt}
    return Sample(Prompt(asked.index, (), asked.prompt, row), asked.response, asked.finish_reason, asked.n_tokens)


class RewardServer(ThreadingHTTPServer):
    """Listens once it is made; ``serve_forever`` answers until ``shutdown``, ``drain`` waits for what is under way."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, address: tuple[str, int], service: Service, quiet: bool = False) -> None:
        self.service = service
        self.quiet = quiet
        self.answered = 0
        self.scored = 0
        self._active = 0
        self._changed = threading.Condition()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """Without http.server's look-up of this machine's name, which may take long and is not used."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            if self._active >= CONNECTIONS:
                self.shutdown_request(request)
                return
            self._active += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left before its answer is not worth a traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def drain(self, seconds: float) -> bool:
        """Whether every request under way was answered in this time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._active == 0, seconds)

    def count(self, samples: int) -> None:
        with self._changed:
            self.answered += 1
            self.scored += samples


class Handler(BaseHTTPRequestHandler):
    """One request a connection."""

    server_version = "tightrope"
    sys_version = ""
    timeout = PATIENCE
    body_was_read = False

    def do_GET(self) -> None:
        if self.path in (OPENAPI, PAGE):
            kind, content = page() if self.path == PAGE else ("application/json", json.dumps(openapi()).encode())
            self.send(HTTPStatus.OK, content, kind)
            return
        self.answer(HEALTH, lambda: self.service.health)

    def do_POST(self) -> None:
        self.answer(REWARDS, self.rewards)

    @property
    def service(self) -> Service:
        assert isinstance(self.server, RewardServer)
        return self.server.service

    def answer(self, path: str, make: Any) -> None:
        try:
            if not self.service.permits(self.headers.get("Authorization")):
                raise Refused(
                    HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: send Authorization: Bearer TOKEN"
                )
            if self.path != path:
                raise Refused(HTTPStatus.NOT_FOUND, f"nothing here: POST {REWARDS}, GET {HEALTH} or {OPENAPI}")
            said: Said = make()
            self.send(HTTPStatus.OK, written(said))
        except Refused as refused:
            self.drop_body()
            self.send(refused.status, written(Refusal(error=refused.error)))

    def rewards(self) -> RewardAnswer:
        began = time.monotonic()
        try:
            request = parsed_request(self.body())
        except TightropeError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        answer = self.service.answer(request)
        assert isinstance(self.server, RewardServer)
        self.server.count(len(request.samples))
        self.log_message(
            "%s", f"{len(request.samples)} samples in {time.monotonic() - began:.2f} s, {request.request_id}"
        )
        return answer

    def body(self) -> bytes:
        """Raises Refused, before it is read, for one that is too large or whose length is not told."""
        told = self.headers.get("Content-Length", "")
        if not (told.isascii() and told.isdigit()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
        if int(told) > self.service.body_limit:
            limit = f"at most {self.service.body_limit} bytes"
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request is too large: {limit}, so send fewer samples at once"
            )
        self.body_was_read = True
        content = self.rfile.read(int(told))
        if len(content) < int(told):
            raise Refused(HTTPStatus.BAD_REQUEST, "the request ends in the middle")
        return content

    def drop_body(self) -> None:
        told = self.headers.get("Content-Length", "")
        until = time.monotonic() + LINGER
        left = int(told) if told.isascii() and told.isdigit() and not self.body_was_read else 0
        while left > 0 and time.monotonic() < until:
            piece = self.rfile.read(min(left, PIECE))
            if not piece:
                return
            left -= len(piece)

    def send(self, status: HTTPStatus, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server refuses by itself, in our words and form."""
        self.close_connection = True
        status = HTTPStatus(code)
        self.send(status, written(Refusal(error=message or status.phrase)))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        if str(code) != "200":
            self.log_message("%s", f"{self.command} {str(code.value) if isinstance(code, HTTPStatus) else code}")

    def log_message(self, format: str, *args: Any) -> None:
        assert isinstance(self.server, RewardServer)
        if not self.server.quiet:
            print(f"{time.strftime('%H:%M:%S')} {self.client_address[0]} {one_line(format % args)}", file=sys.stderr)


def page() -> tuple[str, bytes]:
    """For a browser: what may be asked, and the description for programs."""
    described = html.escape(json.dumps(openapi(), indent=2))
    rows = "".join(f"<li><code>{html.escape(line)}</code></li>" for line in paths())
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Reward service</title>'
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "pre{overflow:auto;padding:1rem;background:#8882}</style>"
        f"<h1>Reward service</h1><p>Every request needs <code>Authorization: Bearer TOKEN</code>.</p><ul>{rows}</ul>"
        f'<p>For programs: <a href="{OPENAPI}">{OPENAPI}</a></p><pre>{described}</pre></html>'
    )
    return "text/html; charset=utf-8", text.encode()


def paths() -> Sequence[str]:
    return [f"{verb.upper()} {path}" for path, verbs in openapi()["paths"].items() for verb in verbs]
