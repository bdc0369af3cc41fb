"""How is a service asked over HTTP so that it can neither hang nor kill a run, nor learn more than it should?

One attempt: a deadline over everything (name look-up, connecting, headers, body), a limit on the answer's size, no
redirect followed (it would carry the token elsewhere), every failure one ``CallFailed``. ``persistently``: attempts
again after waits that double, with a random part drawn from the system and not from the run's generators.
``Breaker``: after so many failures in a row nothing is asked for a while.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from tightrope.config.errors import TightropeError, one_line

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of an answer."""
ERROR_LIMIT = 4096
EXCERPT = 120
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may go away by themselves."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
T = TypeVar("T")
system_random = random.SystemRandom()


class CallFailed(TightropeError):
    """No usable answer. ``passing``: the next attempt may succeed; ``wait``: seconds that the service asked for."""

    passing: bool = False
    wait: float | None = None


@dataclass(frozen=True)
class Endpoint:
    """``url`` is what paths are appended to; ``deadline`` in seconds is for one attempt; ``token_hint`` says in errors
    where the token comes from. The token itself is in no repr and no error."""

    url: str
    token: str | None = field(default=None, repr=False)
    deadline: float = 60.0
    token_hint: str = ""
    limit: int = ANSWER_LIMIT


def call(endpoint: Endpoint, path: str, body: bytes | None = None) -> Any:
    """The JSON that the service answers to a GET, or to a POST of ``body``. Raises CallFailed."""
    return within(endpoint, lambda: exchange(endpoint, path, body))


def within(endpoint: Endpoint, work: Callable[[], T]) -> T:
    """In a thread of its own, given up at the deadline: a look-up of names or a server that sends a byte now and then
    would pass any time limit of a socket. The thread ends when its socket does."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again below, in the thread that asked
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True, name="tightrope-call")
    thread.start()
    thread.join(endpoint.deadline)
    if failures:
        raise failures[0]
    if not results:
        raise too_late(endpoint)
    return results[0]


def exchange(endpoint: Endpoint, path: str, body: bytes | None) -> Any:
    headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
    if endpoint.token is not None:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    request = urllib.request.Request(endpoint.url.rstrip("/") + path, body, headers)
    try:
        with opener_for(endpoint.url).open(request, timeout=endpoint.deadline) as response:
            told = response.headers.get("Content-Length")
            content = response.read(endpoint.limit + 1)
    except urllib.error.HTTPError as error:
        raise refusal(endpoint, error) from error
    except urllib.error.URLError as error:
        raise unreachable(endpoint, error.reason) from error
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(endpoint, error) from error
    if len(content) > endpoint.limit:
        raise failed(endpoint, "the answer is too large", expected=f"at most {endpoint.limit} bytes")
    if told is not None and told.isdigit() and len(content) < int(told):
        raise failed(
            endpoint, "the answer ends in the middle", expected=f"{told} bytes", found=f"{len(content)}", passing=True
        )
    return parsed(endpoint, content)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: following it would send the token and the texts to somebody else."""

    def redirect_request(self, *_: Any) -> None:
        return None


def opener_for(url: str) -> urllib.request.OpenerDirector:
    """Proxies of the environment, but never between this machine and itself."""
    local = urllib.parse.urlsplit(url).hostname in LOOPBACK
    return urllib.request.build_opener(urllib.request.ProxyHandler({} if local else None), NoRedirects)


def parsed(endpoint: Endpoint, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise failed(endpoint, "the answer is not JSON", found=shown(endpoint, content), passing=True) from error


def refusal(endpoint: Endpoint, error: urllib.error.HTTPError) -> CallFailed:
    """A status that is not 2xx, with what the service says about it."""
    try:
        said = error_text(endpoint, error.read(ERROR_LIMIT))
    except (OSError, http.client.HTTPException):
        said = ""
    what = f"the service answered {error.code} {error.reason}".rstrip()
    fix = None
    if error.code in (401, 403):
        what = f"the service refused the token ({error.code})" if endpoint.token else f"it wants a token ({error.code})"
        fix = endpoint.token_hint or None
    elif error.code in (301, 302, 303, 307, 308):
        fix = "redirects are not followed: give the address that it moved to"
    elif error.code in (404, 405):
        fix = "is this the address of a service that speaks this protocol?"
    failure = failed(endpoint, what, found=said or None, fix=fix, passing=error.code in PASSING)
    failure.wait = retry_after(error.headers.get("Retry-After"))
    return failure


def error_text(endpoint: Endpoint, content: bytes) -> str:
    """``{"error": "…"}`` as ours, ``{"error": {"message": "…"}}`` as OpenAI's, else the beginning of the body."""
    try:
        body: Any = json.loads(content)
        told = body["error"]
        text = told if isinstance(told, str) else told["message"]
        return shown(endpoint, str(text).encode())
    except (ValueError, KeyError, TypeError, RecursionError):
        return shown(endpoint, content)


def shown(endpoint: Endpoint, content: bytes) -> str:
    """The beginning in one line. A service may repeat the token that it was given; we do not."""
    text = content[:ERROR_LIMIT].decode(errors="replace")
    if endpoint.token:
        text = text.replace(endpoint.token, "***")
    text = one_line(text)
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


def unreachable(endpoint: Endpoint, reason: object) -> CallFailed:
    if isinstance(reason, TimeoutError):
        return too_late(endpoint)
    said = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    name = type(reason).__name__
    fix = "is it running, and is this its address?" if isinstance(reason, ConnectionRefusedError) else None
    return failed(endpoint, f"no answer: {shown(endpoint, said.encode()) or name}", fix=fix, passing=True)


def too_late(endpoint: Endpoint) -> CallFailed:
    return failed(endpoint, f"no answer within {endpoint.deadline:g} s", passing=True)


def failed(
    endpoint: Endpoint,
    what: str,
    *,
    expected: str | None = None,
    found: str | None = None,
    fix: str | None = None,
    passing: bool = False,
) -> CallFailed:
    failure = CallFailed(what, where=endpoint.url, expected=expected, found=found, fix=fix)
    failure.passing = passing
    return failure


def retry_after(told: str | None, now: datetime | None = None) -> float | None:
    """Seconds of a Retry-After header, written as a number or as a date; None where it is not there or cannot be read.

    >>> retry_after("7"), retry_after(None), retry_after("soon")
    (7.0, None, None)
    >>> retry_after("Thu, 01 Jan 1970 00:00:09 GMT", datetime.fromtimestamp(5, timezone.utc))
    4.0
    """
    told = (told or "").strip()
    if told.isascii() and told.isdigit():
        return float(told)
    try:
        until = parsedate_to_datetime(told)
        return max(0.0, (until - (now or datetime.now(timezone.utc))).total_seconds())
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True)
class Patience:
    """``attempts`` in all; waits between them start near ``first_wait`` seconds and double up to ``longest_wait``."""

    attempts: int = 5
    first_wait: float = 0.5
    longest_wait: float = 30.0

    def wait(self, failures: int, draw: float) -> float:
        """Before the attempt that follows so many failures; ``draw`` in [0, 1) takes up to half of it away, so that
        many clients do not come back at the same moment.

        >>> [Patience(first_wait=1.0, longest_wait=5.0).wait(n, draw=0.0) for n in (1, 2, 3, 4)]
        [1.0, 2.0, 4.0, 5.0]
        >>> Patience(first_wait=1.0).wait(1, draw=0.5)
        0.75
        """
        return min(self.longest_wait, self.first_wait * 2.0 ** (failures - 1)) * (1.0 - draw / 2)


class Breaker:
    """Opens after ``failures`` failures in a row, whoever met them; then every call fails at once. After ``cooldown``
    seconds one call is let through, and closes it again if it succeeds."""

    def __init__(self, failures: int, cooldown: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed = failures
        self._cooldown = cooldown
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        self._asked_again_from = 0.0

    @property
    def is_open(self) -> bool:
        with self._lock:
            return self._failed >= self._allowed and self._clock() < self._asked_again_from

    def succeeded(self) -> None:
        with self._lock:
            self._failed = 0

    def failed(self) -> None:
        with self._lock:
            self._failed += 1
            self._asked_again_from = self._clock() + self._cooldown


@dataclass(frozen=True)
class Waiting:
    """Replaced in tests."""

    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = system_random.random


def persistently(attempt: Callable[[], T], patience: Patience, breaker: Breaker, waiting: Waiting | None = None) -> T:
    """The first success. Raises the last CallFailed, with the number of attempts, when it is not worth another."""
    waiting = Waiting() if waiting is None else waiting
    failures = 0
    while True:
        try:
            result = attempt()
        except CallFailed as error:
            failures += 1
            breaker.failed()
            asked_to_wait = error.wait or 0.0
            last = failures >= patience.attempts or not error.passing or breaker.is_open
            if last or asked_to_wait > patience.longest_wait:
                error.what += f" ({failures} attempt{'' if failures == 1 else 's'})"
                raise
            waiting.sleep(max(asked_to_wait, patience.wait(failures, waiting.draw())))
        else:
            breaker.succeeded()
            return result
