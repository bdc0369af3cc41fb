"""A reward service that fails in every way it can: asked again where that may help, then one clear line. (B75)"""

from __future__ import annotations

import random
import socket
import threading

import numpy as np
import pytest
import torch

from tests.fake_services import dripping, fake_service, good, raw, reply, sleeping, status, with_rewards
from tightrope.config.errors import TightropeError
from tightrope.scoring.http_calls import Breaker, CallFailed, Endpoint, Patience, Waiting
from tightrope.scoring.remote import Asking, HttpReward, require_fingerprint
from tightrope.scoring.remote_protocol import Health
from tightrope.types import Prompt, Sample

TOKEN = "a-secret-token"
HINT = "set the variable MY_TOKEN"
SAMPLES = [
    Sample(Prompt(10 + i, (1, 2), f"prompt {i}", {"prompt": f"prompt {i}", "answer": i}), text, "stop", 2)
    for i, text in enumerate(["one", "two words", ""])
]


class Waits:
    """Waits that take no time and are written down."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.seconds.append, lambda: 0.0)


def source_of(url, *, attempts=3, deadline=5.0, limit=1000, waits=None, breaker=None, asking=None):
    endpoint = Endpoint(url, TOKEN, deadline, HINT, limit)
    breaker = Breaker(100, 60.0) if breaker is None else breaker
    return HttpReward(
        endpoint, Patience(attempts, 1.0, 8.0), breaker, asking, (Waits() if waits is None else waits).waiting
    )


def error_of(source, samples=SAMPLES) -> str:
    with pytest.raises(CallFailed) as caught:
        source.score(samples)
    message = str(caught.value)
    assert "\n" not in message and TOKEN not in message and len(message) < 400
    return message


def test_b75_two_errors_and_then_an_answer():
    waits = Waits()
    with fake_service(status(503), status(500, "boom"), good) as fake:
        assert source_of(fake.url, waits=waits).score(SAMPLES) == [1.0, 2.0, 0.0]
    assert waits.seconds == [1.0, 2.0]
    assert len(fake.requests) == 3 and fake.requests[0] == fake.requests[2]


def test_b75_always_an_error():
    with fake_service(status(500, '{"error": "no GPU left"}')) as fake:
        message = error_of(source_of(fake.url, attempts=4))
    assert len(fake.requests) == 4
    assert message == f"{fake.url}: the service answered 500 Internal Server Error (4 attempts); found no GPU left"


@pytest.mark.parametrize("behaviour", [sleeping(3.0), dripping(3.0)], ids=["silent", "a byte now and then"])
def test_b75_an_answer_that_does_not_come(behaviour):
    with fake_service(behaviour) as fake:
        message = error_of(source_of(fake.url, attempts=2, deadline=0.2))
    assert message == f"{fake.url}: no answer within 0.2 s (2 attempts)"


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (with_rewards(lambda body: [1.0, 2.0]), "(1 attempt); expected 3 numbers, found 2"),
        (with_rewards(lambda body: [1.0] * 4), "expected 3 numbers, found 4"),
        (with_rewards(lambda body: []), "expected 3 numbers, found 0"),
        (with_rewards(lambda body: 0.5), "expected a list of 3 numbers, found float"),
        (with_rewards(lambda body: "good"), "expected a list of 3 numbers, found str"),
        (with_rewards(lambda body: [0.0, float("nan"), 0.0]), "sample 1 (data row 11, prompt 'prompt 1') is not f"),
        (with_rewards(lambda body: [0.0, 1e39, 0.0]), "sample 1 (data row 11, prompt 'prompt 1') is not f"),
        (with_rewards(lambda body: [0.0, "1.0", 0.0]), "sample 1 (data row 11, prompt 'prompt 1') is not a number"),
        (with_rewards(lambda body: [0.0, None, 0.0]), "sample 1 (data row 11, prompt 'prompt 1') is not a number"),
        (with_rewards(lambda body: [1.0] * 3, parts={"style": [1.0]}), "part style: a reward must return one number"),
        (with_rewards(lambda body: [1.0] * 3, parts=[1.0]), "`parts` is not an object"),
        (raw(b"[1.0, 2.0, 3.0]"), "the answer is not one of this protocol"),
        (raw(b'{"scores": [1.0, 2.0, 3.0]}'), "expected an object with `rewards`, found scores"),
        (raw(b'{"request_id": "x", "rewards": [1.0, 2.0, 3.0]}'), "the answer belongs to another request"),
        (raw(b"<html>hello</html>"), "the answer is not JSON (3 attempts); found <html>hello</html>"),
        (raw(b"\xff\xfe\x00"), "the answer is not JSON"),
        (raw(b"[" * 900), "the answer is not JSON"),
        (raw(b'{"rewards": ', 500), "the answer ends in the middle (3 attempts); expected 500 bytes, found 12"),
        (raw(b" " * 5000), "the answer is too large (1 attempt); expected at most 1000 bytes"),
        (status(401, '{"error": "no"}'), f"the service refused the token (401) (1 attempt); found no; {HINT}"),
        (status(404, "nothing here"), "404 Not Found (1 attempt); found nothing here; is this the address"),
        (status(413), "answered 413"),
        (status(302, "", Location="http://127.0.0.1:1/"), "redirects are not followed"),
        (status(400, f"your token {TOKEN} is odd\nreally"), "found your token *** is odd really"),
        (status(400, '{"error": {"message": "wrong model"}}'), "found wrong model"),
    ],
)  # fmt: skip
def test_b75_an_answer_that_is_none(behaviour, message):
    with fake_service(behaviour) as fake:
        told = error_of(source_of(fake.url))
    assert told.startswith(fake.url) and message in told


def test_b75_a_connection_that_is_closed_before_the_answer():
    with fake_service(lambda handler, body: handler.connection.shutdown(socket.SHUT_RDWR)) as fake:
        message = error_of(source_of(fake.url))
    assert len(fake.requests) == 3 and "no answer: " in message


def test_b75_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    message = error_of(source_of(f"http://127.0.0.1:{port}"))
    assert "no answer: Connection refused (3 attempts); is it running" in message
    assert "no answer: " in error_of(source_of("http://no-such-host.invalid"))


def test_a_service_that_says_when_to_come_back_is_waited_for():
    waits = Waits()
    with fake_service(status(429, Retry_After="5"), good) as fake:
        source_of(fake.url, waits=waits).score(SAMPLES)
    assert waits.seconds == [5.0]


def test_a_service_that_wants_to_be_left_alone_for_long_is_given_up():
    waits = Waits()
    with fake_service(status(429, Retry_After="3600"), good) as fake:
        assert "answered 429" in error_of(source_of(fake.url, waits=waits))
    assert waits.seconds == [] and len(fake.requests) == 1


def test_after_so_many_failures_nothing_is_asked_for_a_while():
    now = [0.0]
    breaker = Breaker(4, 60.0, lambda: now[0])
    with fake_service(status(500)) as fake:
        source = source_of(fake.url, attempts=3, breaker=breaker)
        error_of(source)
        assert "(1 attempt)" in error_of(source)  # the fourth failure in a row opens it
        assert "failed too often and is left alone for a while" in error_of(source)
        assert len(fake.requests) == 4
        now[0] = 61.0
        assert "(1 attempt)" in error_of(source)  # one is let through, and opens it again
        assert "left alone" in error_of(source)
        fake.behaviours = [good]
        now[0] = 200.0
        assert source.score(SAMPLES) == [1.0, 2.0, 0.0]
        fake.behaviours = [status(500)]
        assert "(3 attempts)" in error_of(source)


def test_the_runs_random_numbers_are_left_alone():
    states = (random.getstate(), torch.random.get_rng_state(), str(np.random.get_state()))
    with fake_service(status(500), good) as fake:
        endpoint = Endpoint(fake.url, None, 5.0)
        source = HttpReward(endpoint, Patience(2, 1e-3, 1e-3), Breaker(9, 1.0))  # the real waits and draws
        source.score(SAMPLES)
    assert random.getstate() == states[0] and str(np.random.get_state()) == states[2]
    assert torch.equal(torch.random.get_rng_state(), states[1])


def test_everything_about_a_sample_is_sent_and_batches_are_put_together_in_order():
    made = with_rewards(lambda body: [float(s["row"]["answer"]) for s in body["samples"]], parts={"one": [7.0]})
    with fake_service(made) as fake:
        source = source_of(fake.url, asking=Asking(batch_size=1))
        assert source.score(SAMPLES) == [0.0, 1.0, 2.0]
    assert source.parts == {"one": [7.0, 7.0, 7.0]}
    assert fake.requests[1]["samples"] == [
        {
            "prompt": "prompt 1",
            "response": "two words",
            "finish_reason": "stop",
            "n_tokens": 2,
            "index": 11,
            "row": {"prompt": "prompt 1", "answer": 1},
        }
    ]
    assert len({request["request_id"] for request in fake.requests}) == 3
    assert fake.headers[0]["Authorization"] == f"Bearer {TOKEN}" and fake.paths[0] == "/v1/rewards"


def test_only_the_columns_that_are_named_are_sent():
    with fake_service(good) as fake:
        source_of(fake.url, asking=Asking(columns=("answer",))).score(SAMPLES)
    assert [sample["row"] for sample in fake.requests[0]["samples"]] == [{"answer": i} for i in range(3)]


@pytest.mark.parametrize("value", [b"bytes", float("nan"), {1, 2}])
def test_a_row_that_json_cannot_carry_is_named(value):
    odd = Sample(Prompt(4, (), "p", {"prompt": "p", "picture": value}), "r", "stop", 1)
    with (
        fake_service(good) as fake,
        pytest.raises(TightropeError, match="column 'picture' of data row 4 cannot be sent"),
    ):
        source_of(fake.url).score([odd])


def test_numbers_come_back_to_the_last_bit():
    draw = random.Random(3)
    numbers = [draw.gauss(0, 1) * 10.0 ** draw.randint(-30, 30) for _ in range(200)] + [5e-324, -0.0, 0.1 + 0.2]
    samples = [Sample(Prompt(i, (), "p", {}), "r", "stop", 1) for i in range(len(numbers))]
    with fake_service(with_rewards(lambda body: numbers)) as fake:
        got = source_of(fake.url, limit=100_000).score(samples)
    assert [value.hex() for value in got] == [value.hex() for value in numbers]


def test_a_token_is_not_sent_through_a_proxy_to_this_machine_nor_shown(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with fake_service(good) as fake:
        assert source_of(fake.url).score(SAMPLES) == [1.0, 2.0, 0.0]
    assert TOKEN not in repr(Endpoint(fake.url, TOKEN))


def test_who_answers_is_asked():
    told = Health(name="my reward", fingerprint="abc").model_dump_json().encode()
    with fake_service(lambda handler, body: reply(handler, 200, told)) as fake:
        health = source_of(fake.url).health()
    assert (health.name, health.fingerprint, fake.paths) == ("my reward", "abc", ["/v1/health"])
    endpoint = Endpoint(fake.url)
    require_fingerprint(endpoint, health, "abc")
    with pytest.raises(
        CallFailed, match=r"another reward answers here \(my reward\); expected fingerprint xyz, found abc"
    ):
        require_fingerprint(endpoint, health, "xyz")


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (raw(b'{"status": "ok", "protocol": 2, "name": "x"}'), "another version of the protocol; expected 1, found 2"),
        (raw(b'{"model": "x"}'), "this is no reward service; expected status, protocol and name, found model"),
        (raw(b"[]"), "this is no reward service"),
        (status(401), "the service refused the token (401)"),
    ],
)
def test_somebody_else_at_this_address_is_told_at_the_start(behaviour, message):
    with fake_service(behaviour) as fake, pytest.raises(CallFailed) as caught:
        source_of(fake.url).health()
    assert message in str(caught.value)


def test_a_call_that_was_given_up_leaves_no_thread_that_keeps_the_process():
    with fake_service(sleeping(1.0)) as fake:
        error_of(source_of(fake.url, attempts=1, deadline=0.05))
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "tightrope-call")
