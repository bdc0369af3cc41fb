"""What does the reward server answer, whom does it answer, and what does it refuse?"""

from __future__ import annotations

import http.client
import json
import math
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from tightrope.config.errors import TightropeError
from tightrope.scoring.http_calls import Breaker, CallFailed, Endpoint, Patience
from tightrope.scoring.remote import HttpReward
from tightrope.scoring.remote_protocol import (
    HEALTH,
    REWARDS,
    Health,
    RewardAnswer,
    openapi,
    parsed_request,
    written,
)
from tightrope.scoring.reward_server import RewardServer, Service
from tightrope.types import Prompt, Sample

TOKEN = "right"
SAMPLES = [Sample(Prompt(i, (), f"p{i}", {"prompt": f"p{i}", "n": i / 3}), "x" * i, "length", i) for i in range(3)]
ASKED = {"request_id": "r1", "samples": [{"prompt": "p", "response": "abc"}]}


class Lengths:
    """Scores are lengths; keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def score(self, samples):
        self.asked.append(list(samples))
        return [len(sample.response) / 3 for sample in samples]


@contextmanager
def serving(source, token=TOKEN, **more):
    server = RewardServer(("127.0.0.1", 0), Service(source, Health(name="tiny", fingerprint="f"), token, **more), True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked(server, method, path, body=None, token: str | None = TOKEN, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, content, headers)
    response = connection.getresponse()
    status, text = response.status, response.read()
    connection.close()
    return status, text if response.headers["Content-Type"].startswith("text/html") else json.loads(text)


def test_our_client_gets_the_sources_own_numbers_and_the_source_the_samples():
    source = Lengths()
    with serving(source) as server:
        client = HttpReward(Endpoint(server.url, TOKEN), Patience(1), Breaker(9, 1.0))
        assert client.score(SAMPLES) == Lengths().score(SAMPLES)
        assert client.health() == Health(name="tiny", fingerprint="f")
    assert source.asked == [SAMPLES]
    assert (server.answered, server.scored) == (1, 3)


def test_a_row_without_a_prompt_gets_its_text():
    source = Lengths()
    with serving(source) as server:
        assert asked(server, "POST", REWARDS, ASKED) == (200, {"request_id": "r1", "rewards": [1.0], "parts": {}})
        with_column = {"request_id": "r", "samples": [{"prompt": "p", "response": "", "row": {"messages": [], "n": 1}}]}
        asked(server, "POST", REWARDS, with_column)
    rows = [batch[0].prompt.row for batch in source.asked]
    assert rows == [{"prompt": "p"}, {"messages": [], "n": 1}]


@pytest.mark.parametrize("token", [None, "wrong", "rightt", "righ", "", "r\xefght"])
def test_without_the_token_nothing_is_told(token):
    source = Lengths()
    with serving(source) as server:
        for method, path, body in (("GET", HEALTH, None), ("POST", REWARDS, ASKED), ("GET", "/other", None)):
            status, answer = asked(server, method, path, body, token)
            assert status == 401 and answer == {
                "error": "the token is missing or wrong: send Authorization: Bearer TOKEN"
            }
    assert source.asked == []


def test_a_server_without_a_token_asks_for_none():
    with serving(Lengths(), None) as server:
        assert asked(server, "POST", REWARDS, ASKED, None)[0] == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request is not JSON"),
        (b"{", "the request is not JSON"),
        (b"\xff", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON"),
        (b"[]", "the request: Input should be"),
        ({"request_id": "r"}, "samples: Field required"),
        ({"request_id": "r", "samples": []}, "samples: List should have at least 1 item"),
        ({"request_id": "", "samples": ASKED["samples"]}, "request_id: String should have at least 1 character"),
        ({"request_id": "r", "samples": [{"prompt": "p"}]}, "samples.0.response: Field required"),
        ({"request_id": "r", "samples": [{"prompt": "p", "response": 7}]}, "samples.0.response: Input should be"),
        (
            {"request_id": "r", "samples": [{"prompt": "p", "response": "r", "finish_reason": "x"}]},
            "samples.0.finish_reason: Input should be 'stop' or 'length'",
        ),
        ({"request_id": "r", "samples": [{"prompt": "p", "response": "r", "row": []}]}, "samples.0.row"),
    ],
)  # fmt: skip
def test_a_request_that_is_none_is_told_where(body, message):
    with serving(Lengths()) as server:
        status, answer = asked(server, "POST", REWARDS, body)
        assert status == 400 and message in answer["error"] and "\n" not in answer["error"]
        assert asked(server, "POST", REWARDS, ASKED)[0] == 200  # and it goes on


def test_a_field_of_a_later_version_is_passed_over():
    with serving(Lengths()) as server:
        later = ASKED | {"priority": 3, "samples": [{"prompt": "p", "response": "abc", "images": []}]}
        assert asked(server, "POST", REWARDS, later)[1]["rewards"] == [1.0]


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (TightropeError("the row has no column"), 400, "the row has no column"),
        (RuntimeError("CUDA out of\nmemory"), 500, "RuntimeError: CUDA out of memory"),
    ],
)
def test_a_source_that_raises_answers_an_error_and_goes_on(raised, status, message, capfd):
    class Raises(Lengths):
        def score(self, samples):
            if samples[0].response == "abc":
                raise raised
            return super().score(samples)

    with serving(Raises()) as server:
        assert asked(server, "POST", REWARDS, ASKED) == (status, {"error": message})
        other = {"request_id": "r", "samples": [{"prompt": "p", "response": "x"}]}
        assert asked(server, "POST", REWARDS, other)[0] == 200
    assert ("Traceback" in capfd.readouterr().err) == (status == 500)


@pytest.mark.parametrize("scores", [[math.nan], [math.inf], [1.0, 2.0], ["1"], None])
def test_what_is_no_finite_number_each_is_never_sent(scores):
    class Odd:
        def score(self, samples):
            return scores

    with serving(Odd()) as server:
        status, answer = asked(server, "POST", REWARDS, ASKED)
    assert status == 500 and set(answer) == {"error"}


def test_a_request_over_the_limit_is_refused_and_told_to_our_client():
    source = Lengths()
    with serving(source, body_limit=1000) as server:
        client = HttpReward(Endpoint(server.url, TOKEN), Patience(3), Breaker(9, 1.0))
        long = [Sample(Prompt(0, (), "p", {}), "x" * 3_000_000, "stop", 1)]
        with pytest.raises(CallFailed, match=r"413 .*too large: at most 1000 bytes, so send fewer samples at once"):
            client.score(long)
        short = [Sample(Prompt(0, (), "p", {}), "abc", "stop", 1)]
        assert client.score(short) == [1.0]


def test_a_request_without_its_length_is_refused():
    with serving(Lengths()) as server:
        body = iter([b'{"request_id": "r"}'])  # sent in chunks
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request("POST", REWARDS, body, {"Authorization": f"Bearer {TOKEN}"}, encode_chunked=True)
        assert connection.getresponse().status == 411


def test_a_client_that_leaves_in_the_middle_costs_nothing(capfd):
    source = Lengths()
    with serving(source) as server:
        for text in (
            b"",
            b"GET",
            b"POST /v1/rewards HTTP/1.1\r\nAuthorization: Bearer right\r\nContent-Length: 50\r\n\r\n{",
        ):
            with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
                connection.sendall(text)
        assert asked(server, "POST", REWARDS, ASKED)[0] == 200
        assert server.drain(10.0)
    assert source.asked and len(source.asked) == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/reward", 404), ("POST", HEALTH, 404), ("PUT", REWARDS, 501)]
)
def test_another_path_or_verb_is_told_in_the_same_form(method, path, status):
    with serving(Lengths()) as server:
        found, answer = asked(server, method, path, b"{}")
        assert found == status and set(answer) == {"error"}


def test_one_batch_is_scored_at_a_time():
    class Alone(Lengths):
        inside = 0
        most = 0

        def score(self, samples):
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.02)
            self.inside -= 1
            return super().score(samples)

    source = Alone()
    with serving(source) as server:
        threads = [threading.Thread(target=asked, args=(server, "POST", REWARDS, ASKED)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.drain(10.0) and server.answered == 5
    assert source.most == 1


def test_the_description_is_open_and_is_that_of_the_messages():
    with serving(Lengths()) as server:
        status, described = asked(server, "GET", "/openapi.json", token=None)
        assert status == 200 and described == openapi()
        status, page = asked(server, "GET", "/", token=None)
    assert status == 200 and b"POST /v1/rewards" in page and b"src=" not in page and b"://" not in page
    assert set(described["paths"]) == {HEALTH, REWARDS}
    schemas = described["components"]["schemas"]
    assert set(schemas) == {"AskedSample", "RewardRequest", "RewardAnswer", "Health", "Refusal"}
    assert set(schemas["AskedSample"]["required"]) == {"prompt", "response"}
    references = {part.split('"')[0] for part in json.dumps(described).split("#/components/schemas/")[1:]}
    assert references <= set(schemas)
    assert all(field.get("description") for schema in schemas.values() for field in schema["properties"].values())


def test_messages_survive_the_journey():
    request = parsed_request(json.dumps(ASKED).encode())
    assert parsed_request(written(request)) == request
    answer = RewardAnswer(request_id="r", rewards=[0.1 + 0.2, 5e-324])
    assert json.loads(written(answer))["rewards"] == [0.30000000000000004, 5e-324]
    with pytest.raises(ValueError, match="JSON compliant"):
        written(RewardAnswer(request_id="r", rewards=[math.nan]))


def test_the_token_is_in_no_representation():
    assert "secret" not in repr(Service(Lengths(), Health(name="x"), "secret"))
