"""The gateway as its clients see it: the real openai and langchain-openai packages, and curl, over loopback,
in front of the native drafter and the verifier service on fake engines.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.keyring import Keyring
from cloud_stub.local import LocalLink
from cloud_stub.service import Service
from tests.clock import LIMIT, wait_until
from tests.integration.edge_cloud_kit import CONTEXT, SLOWLY, make_service, native_drafter, served
from tests.python.fake_bundle import make_bundle
from tests.python.fakes import no_thread_left
from tests.python.gateway_kit import Live, serving

openai = pytest.importorskip("openai")

TEMPLATE = "{% for message in messages %}{{ message.content }}. {% endfor %}"
TOOL_TEMPLATE = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}" + TEMPLATE
ASKED: Any = [{"role": "user", "content": "hello"}]
PROMPT = "hello. "
SAMPLED: Any = {"temperature": 1.0, "top_p": 0.95, "seed": 42, "max_tokens": 40}


@pytest.fixture(autouse=True, scope="module")
def threads_end() -> Iterator[None]:
    with no_thread_left():
        yield


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("clients"), chat_template=TOOL_TEMPLATE)


@pytest.fixture(scope="module")
def live(bundle: Bundle) -> Iterator[Live]:
    """Over a WebSocket, as in the field."""
    with served(bundle) as port:
        url = f"ws://127.0.0.1:{port}/v1/spec"
        edge = EdgeRuntime(bundle, url, drafter=native_drafter(), context=CONTEXT)
        with serving(edge, Keyring.of("the-key"), context=CONTEXT) as live:
            yield live


@pytest.fixture
def client(live: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=live.url, api_key="the-key", timeout=LIMIT, max_retries=0) as client:
        yield client


@pytest.fixture
def direct(live: Live) -> EdgeRuntime:
    """The runtime behind the gateway, used without it: what it writes is right."""
    return live.gateway.edge


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["fake-64"]
    assert client.models.retrieve("fake-64").owned_by == "acespec"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


@pytest.mark.parametrize("mode", ["auto", "cloud", "edge"])
def test_a_chat_is_what_the_runtime_writes(client: Any, direct: EdgeRuntime, mode: Any) -> None:
    expected = direct.generate(PROMPT, raw=True, mode=mode, **SAMPLED)
    answer = client.chat.completions.create(
        model="fake-64", messages=ASKED, extra_body={"mode": mode}, **SAMPLED
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason in ("stop", "length")
    counted = answer.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"})
    assert expected.usage.to_dict() | counted == expected.usage.to_dict()


@pytest.mark.parametrize("mode", ["auto", "cloud", "edge"])
def test_a_turn_says_what_was_kept_of_the_one_before(client: Any, mode: Any) -> None:
    def ask() -> Any:
        request = {"model": "fake-64", "messages": ASKED, "extra_body": {"mode": mode}}
        return client.chat.completions.create(**request, **SAMPLED).usage

    first, second = ask(), ask()
    assert second.prompt_tokens_details.cached_tokens == first.prompt_tokens - 1


def test_a_stream_is_the_same_text(client: Any, direct: EdgeRuntime) -> None:
    expected = direct.generate(PROMPT, raw=True, **SAMPLED)
    chunks = list(
        client.chat.completions.create(
            model="fake-64", messages=ASKED, stream=True, stream_options={"include_usage": True}, **SAMPLED
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == expected.text
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], len(expected.token_ids))


def test_own_options_go_through_the_extra_body(client: Any, direct: EdgeRuntime) -> None:
    own = {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.3, "min_tokens": 4, "ignore_eos": True}
    expected = direct.generate(PROMPT, raw=True, **own, **SAMPLED)
    answer = client.chat.completions.create(
        model="fake-64", messages=ASKED, extra_body={**own, "acespec_stats": True}, **SAMPLED
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.acespec["stats"][0]["seed"] == 42


@pytest.mark.parametrize("stream", [False, True])
def test_l1_log_probabilities_of_a_chat(client: Any, direct: EdgeRuntime, stream: bool) -> None:
    expected = direct.generate(PROMPT, raw=True, logprobs=3, ignore_eos=True, **SAMPLED)
    assert expected.logprobs is not None
    answer = client.chat.completions.create(
        model="fake-64",
        messages=ASKED,
        logprobs=True,
        top_logprobs=3,
        stream=stream,
        extra_body={"ignore_eos": True},
        **SAMPLED,
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    told = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert [bytes(entry.bytes) for entry in told] == [entry.bytes for entry in expected.logprobs]
    assert [entry.token for entry in told] == [
        entry.bytes.decode(errors="replace") for entry in expected.logprobs
    ]
    for entry, right in zip(told, expected.logprobs, strict=True):
        assert entry.logprob == pytest.approx(right.logprob, abs=1e-4)
        assert [bytes(other.bytes) for other in entry.top_logprobs] == [other.bytes for other in right.top]


@pytest.mark.parametrize("stream", [False, True])
def test_l1_log_probabilities_of_a_completion(client: Any, direct: EdgeRuntime, stream: bool) -> None:
    expected = direct.generate(PROMPT, raw=True, logprobs=2, **SAMPLED)
    assert expected.logprobs is not None
    answer = client.completions.create(model="fake-64", prompt=PROMPT, logprobs=2, stream=stream, **SAMPLED)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    text = "".join(choice.text for choice in choices)
    blocks = [choice.logprobs for choice in choices if choice.logprobs]
    shown = [entry for entry in expected.logprobs if entry.token != 63]
    assert text == expected.text
    assert [value for block in blocks for value in block.token_logprobs] == pytest.approx(
        [entry.logprob for entry in shown], abs=1e-4
    )
    tokens = [token for block in blocks for token in block.tokens]
    offsets = [offset for block in blocks for offset in block.text_offset]
    for token, offset, entry in zip(tokens, offsets, shown, strict=True):
        if token.startswith("bytes:"):
            assert token == "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.bytes)
        else:
            assert text[offset : offset + len(token)] == token == entry.bytes.decode()
    for block in blocks:
        assert all(2 <= len(top) <= 3 for top in block.top_logprobs)
        assert all(token in top for token, top in zip(block.tokens, block.top_logprobs, strict=True))


def test_completions_of_texts_and_ids(client: Any, direct: EdgeRuntime) -> None:
    options: Any = {"max_tokens": 12, "temperature": 0.0}
    texts = [direct.generate(prompt, raw=True, **options).text for prompt in (PROMPT, "bye")]
    ids = direct.bundle.vocabulary_table.encode(PROMPT)
    for prompt, right in (
        (PROMPT, texts[:1]),
        ([PROMPT, "bye"], texts),
        (ids, texts[:1]),
        ([ids], texts[:1]),
    ):
        answer = client.completions.create(model="fake-64", prompt=prompt, **options)
        assert [choice.text for choice in answer.choices] == right


def test_choices_are_those_of_generate_many(client: Any, direct: EdgeRuntime) -> None:
    expected = [result.text for result in direct.generate_many(PROMPT, n=3, raw=True, **SAMPLED)]
    answer = client.chat.completions.create(model="fake-64", messages=ASKED, n=3, **SAMPLED)
    assert [choice.message.content for choice in answer.choices] == expected
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(model="fake-64", messages=ASKED, n=3, stream=True, **SAMPLED):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == expected


def test_stop_and_bias(client: Any, direct: EdgeRuntime) -> None:
    whole = direct.generate(PROMPT, raw=True, ignore_eos=True, **SAMPLED).text
    stop = whole[5:8]
    answer = client.chat.completions.create(model="fake-64", messages=ASKED, stop=[stop], **SAMPLED)
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    biased = client.chat.completions.create(
        model="fake-64", messages=ASKED, max_tokens=4, logit_bias={"7": 100}
    )
    assert biased.choices[0].message.content == "hhhh"


def test_the_form_of_the_output(client: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "boolean"}}}
    for seed in range(4):
        answer = client.chat.completions.create(
            model="fake-64", messages=ASKED, response_format=form, seed=seed, max_tokens=20
        )
        assert json.loads(answer.choices[0].message.content) in (True, False)
    answer = client.chat.completions.create(
        model="fake-64", messages=ASKED, extra_body={"regex": "(ab|cd)+e"}, logit_bias={"4": 50}
    )
    assert answer.choices[0].message.content in ("abe", "cde")


def test_errors_have_their_classes(live: Live, client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature is -1") as caught:
        client.chat.completions.create(model="fake-64", messages=ASKED, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake-64", messages=ASKED, max_completion_tokens=10_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=ASKED)
    with (
        openai.OpenAI(base_url=live.url, api_key="another", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError, match="not one of this gateway's"),
    ):
        stranger.models.list()


async def test_the_async_client(live: Live, direct: EdgeRuntime) -> None:
    expected = direct.generate(PROMPT, raw=True, **SAMPLED).text
    async with openai.AsyncOpenAI(base_url=live.url, api_key="the-key", max_retries=0) as client:
        stream = await client.chat.completions.create(model="fake-64", messages=ASKED, stream=True, **SAMPLED)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == expected


@contextlib.contextmanager
def unhurried(bundle: Bundle, **options: Any) -> Iterator[tuple[Live, Service, Any]]:
    """A gateway in front of a service that takes its time, and a client of it."""
    service = make_service(bundle, verify_ms=SLOWLY)
    edge = EdgeRuntime(
        bundle, lambda: LocalLink(service), drafter=native_drafter(), context=CONTEXT, reconnect_for=0.0
    )
    with (
        serving(edge, **options) as live,
        openai.OpenAI(base_url=live.url, api_key="-", timeout=LIMIT, max_retries=0) as client,
    ):
        yield live, service, client


def test_leaving_a_stream_frees_both_sides(bundle: Bundle) -> None:
    with unhurried(bundle) as (live, service, client):
        stream = client.chat.completions.create(
            model="fake-64", messages=ASKED, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        assert service.kv.reserved > 0
        stream.close()
        wait_until(lambda: service.kv.reserved == 0 and live.gateway.turns.inside == 0)
        answer = client.chat.completions.create(model="fake-64", messages=ASKED, max_tokens=2)
        assert answer.usage.completion_tokens == 2


def test_a_cloud_that_ends_in_a_stream_raises_in_the_client(bundle: Bundle) -> None:
    with unhurried(bundle) as (_, service, client):
        stream = client.chat.completions.create(
            model="fake-64", messages=ASKED, stream=True, extra_body={"ignore_eos": True}
        )
        read = [next(iter(stream))]
        service.close()
        with pytest.raises(openai.APIError, match="shutting down"):
            read += stream
        assert all(chunk.choices[0].finish_reason is None for chunk in read)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="fake-64", messages=ASKED)


def test_a_full_room_is_a_rate_limit(bundle: Bundle) -> None:
    with unhurried(bundle, room=1) as (_, _, client):
        stream = client.chat.completions.create(
            model="fake-64", messages=ASKED, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="fake-64", messages=ASKED)
        stream.close()


@pytest.fixture
def langchain(live: Live) -> Any:
    package = pytest.importorskip("langchain_openai")
    return package.ChatOpenAI(
        model="fake-64",
        base_url=live.url,
        api_key="the-key",
        max_retries=0,
        temperature=1.0,
        top_p=0.95,
        seed=42,
        max_tokens=40,
        stream_usage=True,
        use_responses_api=False,
    )


def test_langchain_chats_and_streams(langchain: Any, direct: EdgeRuntime) -> None:
    expected = direct.generate(PROMPT, raw=True, **SAMPLED)
    answer = langchain.invoke("hello")
    assert answer.content == expected.text
    assert answer.usage_metadata["output_tokens"] == len(expected.token_ids)
    chunks = list(langchain.stream("hello"))
    assert "".join(chunk.content for chunk in chunks) == expected.text
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [usage["input_tokens"] for usage in usages] == [expected.usage.prompt_tokens]


async def test_langchain_without_blocking(langchain: Any, direct: EdgeRuntime) -> None:
    expected = direct.generate(PROMPT, raw=True, **SAMPLED)
    assert (await langchain.ainvoke("hello")).content == expected.text
    await langchain.root_async_client.close()


def test_langchain_binds_tools(langchain: Any, direct: EdgeRuntime) -> None:
    schema = {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
    expected = direct.generate("look" + PROMPT, raw=True, **SAMPLED)
    answer = langchain.bind_tools([schema]).invoke("hello")
    assert (answer.content, answer.tool_calls) == (expected.text, [])


def test_langchain_log_probabilities(langchain: Any) -> None:
    answer = langchain.bind(logprobs=True, top_logprobs=2).invoke("hello")
    entries = answer.response_metadata["logprobs"]["content"]
    shown = b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace")
    assert shown == answer.content


def curl(live: Live, path: str, body: Any = None, *more: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    sent = [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    key = ["-H", "Authorization: Bearer the-key"]
    command = ["curl", "-sS", "--noproxy", "*", "--max-time", str(int(LIMIT)), *key, *sent, *more]
    return subprocess.run([*command, live.url + path], capture_output=True, text=True, check=True).stdout


def test_a1_curl(live: Live, direct: EdgeRuntime) -> None:
    assert json.loads(curl(live, "/models"))["data"][0]["id"] == "fake-64"
    expected = direct.generate(PROMPT, raw=True, **SAMPLED).text
    body = {"messages": ASKED, **SAMPLED}
    assert json.loads(curl(live, "/chat/completions", body))["choices"][0]["message"]["content"] == expected
    lines = curl(live, "/chat/completions", {**body, "stream": True}, "-N").splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2] if line]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == expected
    status = curl(live, "/chat/completions", {"messages": []}, "-o", "/dev/null", "-w", "%{http_code}")
    assert status == "400"
