"""What the gateway does not take: the status, the field, and who is let in."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.errors import EngineError, LinkError, PeerError, UsageError
from acespec_edge.gateway import body
from acespec_edge.gateway.access import read_keys
from acespec_edge.gateway.errors import api_error
from acespec_edge.gateway.listening import Listener
from acespec_edge.keyring import Keyring
from tests.clock import LIMIT
from tests.python.edge_kit import runtime
from tests.python.fake_bundle import make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import no_thread_left
from tests.python.gateway_kit import Live, chat_bundle, serving, writes

TARGET = writes("hello there, edge.")


@pytest.fixture(autouse=True, scope="module")
def threads_end() -> Iterator[None]:
    with no_thread_left():
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return chat_bundle(tmp_path_factory.mktemp("refusals"))


@pytest.fixture(scope="module")
def live(bundle: Bundle) -> Iterator[Live]:
    with serving(runtime(bundle, TARGET, TARGET, cloud=FakeCloud(TARGET, max_context=40))) as live:
        yield live


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, whose form is checked."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    error: dict[str, Any] = answer.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    return error


IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]

CHATS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"temperature": "hot"}, "temperature", "temperature is 'hot': it must be a valid number"),
    ({"temperature": -1}, "temperature", "temperature is -1"),
    ({"temperature": True}, "temperature", "temperature is True"),
    ({"top_p": 0}, "top_p", "top_p is 0"),
    ({"presence_penalty": 3}, "presence_penalty", "presence_penalty is 3"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "frequency_penalty is -2.5"),
    ({"min_p": 2}, "min_p", "min_p is 2"),
    ({"top_k": 1.5}, "top_k", "top_k is 1.5"),
    ({"n": 0}, "n", "n is 0: it must be greater than or equal to 1"),
    ({"n": 129}, "n", "n is 129: it must be less than or equal to 128"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens is 0"),
    (
        {"max_tokens": 39},
        "max_tokens",
        "max_tokens is 39: fake target holds 40 tokens, .* so 38 are the most",
    ),
    ({"max_completion_tokens": 99}, "max_completion_tokens", "max_completion_tokens is 99: .* so 38 are"),
    ({"min_tokens": 39}, "min_tokens", "min_tokens is 39"),
    ({"seed": "x"}, "seed", "seed is 'x'"),
    ({"stop": 5}, "stop", "stop is 5"),
    ({"stop": ["a", 5]}, "stop[1]", r"stop\[1\] is 5"),
    ({"stop": ""}, "stop[0]", r"stop\[0\] is ''"),
    ({"stop": ["x"] * 17}, "stop", "stop has 17 strings: at most 16"),
    ({"logit_bias": {"the": 1}}, "logit_bias", "logit_bias names 'the'"),
    ({"logit_bias": {"64": 1}}, "logit_bias", "logit_bias names 64"),
    ({"logit_bias": {"3": "much"}}, "logit_bias.3", "logit_bias.3 is 'much'"),
    ({"logit_bias": [1]}, "logit_bias", r"logit_bias is \[1\]"),
    ({"mode": "fast"}, "mode", "mode is 'fast'"),
    ({"stream": "yes"}, "stream", "stream is 'yes'"),
    ({"stream_options": 1}, "stream_options", "stream_options is 1"),
    ({"logprobs": 3}, "logprobs", "logprobs is 3"),
    ({"top_logprobs": 3}, "top_logprobs", "top_logprobs is 3: it needs logprobs = true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21"),
    ({"logprobs": True, "mode": "edge"}, "logprobs", "logprobs are the target's"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "response_format.type is 'xml'"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "response_format.json_schema",
        "it must be an object with a schema",
    ),
    ({"response_format": "json"}, "response_format", "response_format is 'json'"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format", "exclude each other"),
    ({"regex": ""}, "regex", "regex is empty"),
    ({"tools": [{"type": "function"}]}, "tools", "tools: the chat template .* has no place for them"),
    ({"tools": ["f"]}, "tools[0]", r"tools\[0\] is 'f'"),
    ({"tools": [{}], "regex": "a"}, "tools", "leaves no room for calls"),
    ({"tool_choice": "required"}, "tool_choice", "tool_choice is 'required'"),
    ({"functions": [{}]}, "functions", "use tools"),
    ({"messages": []}, "messages", r"messages is \[\]"),
    ({"messages": "hi"}, "messages", "messages is 'hi'"),
    ({"messages": [{"content": "hi"}]}, "messages[0]", "an object with a role"),
    ({"messages": [{"role": "user"}]}, "messages[0]", "role and content"),
    (
        {"messages": [{"role": "user", "content": IMAGE}]},
        "messages[0].content",
        "'image_url' is not supported",
    ),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, None, "surrogate"),
    (
        {"messages": [{"role": "user", "content": "x" * 41}]},
        None,
        "prompt has 41 tokens: .* so 39 are the most",
    ),
    ({"model": "gpt-9"}, "model", "model is 'gpt-9': 'fake-64' is the one served here"),
    ({"model": 5}, "model", "model is 5"),
]


@pytest.mark.parametrize(("fields", "param", "words"), CHATS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_chat(
    live: Live, fields: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, **fields}
    answer = live.http.post(
        "/chat/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    error = refused(answer, 404 if param == "model" and fields["model"] == "gpt-9" else 400)
    assert error["param"] == param
    assert re.search(words, error["message"]), error["message"]
    if "tokens, prompt and output together" in error["message"]:
        assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "prompt is empty"),
        ({"prompt": []}, "prompt", "prompt is []"),
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"prompt": [1, "a"]}, "prompt", "prompt is [1, 'a']"),
        ({"prompt": [[1], ["a"]]}, "prompt", "prompt is [[1], ['a']]"),
        ({"prompt": [True]}, "prompt", "prompt is [True]"),
        ({"prompt": [64]}, "prompt[0]", "prompt[0] is 64"),
        ({"prompt": ["hi"] * 43, "n": 3}, "n", "n is 3 for 43 prompts: 128 choices"),
        ({"echo": True}, "echo", "echo is True: it is not supported"),
        ({"suffix": "!"}, "suffix", "suffix is '!'"),
        ({"best_of": 2}, "best_of", "best_of is 2"),
        ({"logprobs": 21}, "logprobs", "logprobs is 21"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
    ],
)
def test_a_wrong_completion(live: Live, fields: dict[str, Any], param: str, words: str) -> None:
    error = refused(live.complete(**{"prompt": "hi", **fields}), 400)
    assert error["param"] == param
    assert words in error["message"]


def test_defaults_that_are_given_are_taken(live: Live) -> None:
    given = {"echo": False, "suffix": None, "best_of": 1, "logprobs": None}
    assert live.complete(**given, max_tokens=1).status_code == 200
    assert live.chat(tool_choice="none", tools=[{}], max_tokens=1).status_code == 200


def test_a_bundle_without_a_template_completes_only(tmp_path: Path) -> None:
    with serving(runtime(make_bundle(tmp_path / "plain"), TARGET, TARGET)) as live:
        assert "has no chat template" in refused(live.chat(), 400)["message"]
        assert live.complete(max_tokens=5).json()["choices"][0]["text"] == "hello"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "the body is not valid JSON"),
        (b"", "the body is not valid JSON"),
        (b'"hi"', "the body is a JSON str: it must be an object"),
        (b'{"temperature": NaN}', "NaN is no JSON number"),
        (b"\xff\xfe", "the body is not valid JSON"),
        (b"[" * 100_000, "the body is not valid JSON"),
        (b'{"temperature": ' + b"1" * 5000 + b"}", "the body is not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}', "temperature"),
        (
            b'{"messages": [{"role": "user", "content": "hi"}], "wibble": "\\ud800", "mode": "\\ud800"}',
            "mode",
        ),
    ],
)
def test_a_body_that_is_no_request(live: Live, content: bytes, words: str) -> None:
    answer = live.http.post(
        "/chat/completions", content=content, headers={"Content-Type": "application/json; charset=utf-8"}
    )
    assert words in refused(answer, 400)["message"]
    assert live.chat(max_tokens=1).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_needs_no_leave_of_the_page_it_is_sent_from(live: Live, kind: str) -> None:
    answer = live.http.post("/chat/completions", content=b"{}", headers={"Content-Type": kind})
    assert "it must be application/json" in refused(answer, 415)["message"]


def test_paths_and_methods(live: Live) -> None:
    refused(live.http.get("/wibble"), 404)
    answer = live.http.get("/chat/completions")
    refused(answer, 405)
    assert answer.headers["allow"] == "POST"


def raw(live: Live, head: str, *parts: bytes) -> bytes:
    """What comes back until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", live.port), LIMIT) as sock:
        sock.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        for part in parts:
            sock.sendall(part)
        received = b""
        while data := sock.recv(65536):
            received += data
        return received


HEAD = "POST /v1/completions HTTP/1.1\nHost: 127.0.0.1\nConnection: close\nContent-Type: application/json"


def test_a_body_too_large_is_not_read(live: Live) -> None:
    said = raw(live, f"{HEAD}\nContent-Length: {body.MAX_BODY + 1}")
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"8,388,608 bytes are the most" in said


def test_a_body_that_grows_too_large(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body.read_object, "__kwdefaults__", {"most": 10, "timeout": LIMIT})
    said = raw(live, f"{HEAD}\nTransfer-Encoding: chunked", b"6\r\n{     \r\n", b"6\r\n      \r\n")
    assert said.startswith(b"HTTP/1.1 413 ")
    fits = raw(live, f"{HEAD}\nTransfer-Encoding: chunked", b"a\r\n{}        \r\n", b"0\r\n\r\n")
    assert b"prompt is missing" in fits


def test_a_body_that_never_comes(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body.read_object, "__kwdefaults__", {"most": 100, "timeout": 0.2})
    said = raw(live, f"{HEAD}\nContent-Length: 10", b"{")
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in said


KEYS = ["first-key", "second-key"]


def test_keys(bundle: Bundle) -> None:
    with serving(runtime(bundle, TARGET, TARGET), Keyring.of(*KEYS)) as live:
        for headers in ({}, {"Authorization": "Bearer first-ke"}, {"Authorization": "Basic first-key"}):
            for answer in (
                live.http.get("/models", headers=headers),
                live.http.get("/wibble", headers=headers),
                live.http.post("/chat/completions", json={}, headers=headers),
            ):
                error = refused(answer, 401)
                assert error["code"] == "invalid_api_key"
                assert "first" not in error["message"]
                assert answer.headers["www-authenticate"] == "Bearer"
        for key in KEYS:
            headers = {"Authorization": f"bearer {key}", "Host": "device.example.com"}
            assert live.http.get("/models", headers=headers).status_code == 200
        assert live.http.get("../healthz").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:80", "[::1]:80", "127.1.2.3"])
def test_names_of_this_machine(live: Live, host: str) -> None:
    assert live.http.get("/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["example.com", "example.com:8080", "10.0.0.1", "localhost.example.com"])
def test_without_keys_no_other_name_leads_here(live: Live, host: str) -> None:
    error = refused(live.http.get("/models", headers={"Host": host}), 403)
    assert host.partition(":")[0] in error["message"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "device.example.com", "::"])
def test_listening_for_others_needs_keys(host: str) -> None:
    with pytest.raises(UsageError, match="there is no API key file: anybody could"):
        Listener(host)
    Listener(host, guarded=True)


def test_an_address_that_is_taken() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UsageError, match="cannot listen on"),
    ):
        Listener(port=taken.getsockname()[1]).bind()


def test_a_key_file_has_the_limits_of_the_gateway(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("abc requests=1 tokens_per_minute=60\n", encoding="utf-8")
    assert len(read_keys(file)) == 1
    file.write_text("abc sessions=1\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"api_key_file .*line 1.*requests=NUMBER, tokens_per_minute=NUMBER"):
        read_keys(file)


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (UsageError("top_p is 2; it must be"), 400, None, None),
        (LinkError("lost the connection"), 503, "cloud_lost", "5"),
        (LinkError("the cloud is busy", retry_after=2.2), 503, "cloud_busy", "3"),
        (PeerError("nonsense"), 502, "cloud_fault", None),
        (EngineError("no memory"), 500, "engine_error", None),
        (ZeroDivisionError("oh"), 500, "engine_error", None),
    ],
)
def test_whose_fault_it_is(error: Exception, status: int, code: str | None, retry: str | None) -> None:
    problem = api_error(error)
    assert (problem.status, problem.code, problem.headers.get("Retry-After")) == (status, code, retry)
