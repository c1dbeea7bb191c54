"""The gateway's answers, field by field, as OpenAI's API has them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from tests.python.edge_kit import runtime
from tests.python.fake_bundle import EOS, make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import no_thread_left
from tests.python.gateway_kit import Live, chat_bundle, events, serving, writes

TARGET = writes("hello there, edge.", end=[EOS])


@pytest.fixture(autouse=True, scope="module")
def threads_end() -> Iterator[None]:
    with no_thread_left():
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return chat_bundle(tmp_path_factory.mktemp("forms"))


LINK = FakeCloud(TARGET)


@pytest.fixture(scope="module")
def live(bundle: Bundle) -> Iterator[Live]:
    with serving(runtime(bundle, TARGET, TARGET, cloud=LINK)) as live:
        yield live


@pytest.fixture
def cloud() -> FakeCloud:
    """What ``live`` is connected to, as if nothing had been received."""
    LINK.received.clear()
    return LINK


def opened(cloud: FakeCloud) -> list[_core.Open]:
    return [message for message in cloud.received if isinstance(message, _core.Open)]


def head(answer: dict[str, Any], kind: str, prefix: str) -> dict[str, Any]:
    """Checks what every answer bears, and returns the rest."""
    assert re.fullmatch(prefix + r"-[0-9a-f]{24}", answer.pop("id"))
    assert abs(answer.pop("created") - time.time()) < 60
    assert re.fullmatch(r"fp_[0-9a-f]{10}", answer.pop("system_fingerprint"))
    assert (answer.pop("object"), answer.pop("model")) == (kind, "fake-64")
    return answer


def test_a_chat_completion(live: Live) -> None:
    answer = live.chat()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert head(answer.json(), "chat.completion", "chatcmpl") == {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello there, edge.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 19, "total_tokens": 21},
    }


def test_a_completion(live: Live) -> None:
    assert head(live.complete(max_tokens=5).json(), "text_completion", "cmpl") == {
        "choices": [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
    }


def test_a_completion_has_16_tokens_when_nothing_is_said_and_a_chat_the_whole_context(live: Live) -> None:
    assert live.complete().json()["usage"]["completion_tokens"] == 16
    assert live.chat(ignore_eos=True).json()["usage"]["total_tokens"] == 4096


def test_a1_a_streamed_chat(live: Live) -> None:
    """The role comes first, the finish reason once and last, usage not unless asked for, then [DONE]."""
    *chunks, done = events(live.chat(stream=True))
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == len({chunk["created"] for chunk in chunks}) == 1
    choices = []
    for chunk in chunks:
        rest = head(chunk, "chat.completion.chunk", "chatcmpl")
        assert list(rest) == ["choices"]
        choices += rest["choices"]
    assert len(choices) == len(chunks) > 3
    first, *middle, last = choices
    plain = {"index": 0, "logprobs": None, "finish_reason": None}
    assert first == plain | {"delta": {"role": "assistant", "content": ""}}
    assert last == plain | {"delta": {}, "finish_reason": "stop"}
    assert all(choice == plain | {"delta": {"content": choice["delta"]["content"]}} for choice in middle)
    assert all(choice["delta"]["content"] for choice in middle)
    assert "".join(choice["delta"]["content"] for choice in middle) == "hello there, edge."


def test_a1_a_streamed_chat_with_usage(live: Live) -> None:
    *chunks, last, done = events(live.chat(stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    assert head(last, "chat.completion.chunk", "chatcmpl") == {
        "choices": [],
        "usage": {"prompt_tokens": 2, "completion_tokens": 19, "total_tokens": 21},
    }


def test_a1_a_streamed_completion(live: Live) -> None:
    *chunks, done = events(live.complete(max_tokens=5, stream=True))
    assert done == "[DONE]"
    choices = [head(chunk, "text_completion", "cmpl")["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "hello"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_a2_fields_that_are_unknown_or_null(live: Live, kind: str) -> None:
    fields = {"max_tokens": None, "n": None, "stop": None, "seed": None, "logit_bias": None, "tools": None}
    answer = getattr(live, kind)(
        **fields, model="fake-64", user="somebody", store=True, metadata={"a": "b"}, wibble={"wobble": [1]}
    )
    assert answer.status_code == 200


def test_a2_max_completion_tokens_comes_before_max_tokens(live: Live) -> None:
    usage = live.chat(max_tokens=3, max_completion_tokens=5).json()["usage"]
    assert usage["completion_tokens"] == 5
    assert live.chat(max_tokens=3).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_e4_exactly_so_many_tokens(live: Live, max_tokens: int) -> None:
    answer = live.chat(max_tokens=max_tokens).json()
    assert answer["choices"][0]["message"]["content"] == "hello there, edge."[:max_tokens]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == max_tokens


@pytest.mark.parametrize("stop", [", ed", ["zz", ", ed"], [f"z{number}" for number in range(15)] + [", ed"]])
def test_e3_stop_strings(live: Live, stop: str | list[str]) -> None:
    choice = live.chat(stop=stop).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hello there", "stop")
    deltas = [chunk["choices"][0]["delta"] for chunk in events(live.chat(stop=stop, stream=True))[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "hello there"


def test_choices_have_seeds_that_count_up(live: Live, cloud: FakeCloud) -> None:
    answer = live.chat(n=3, seed=7, max_tokens=5).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 15, "total_tokens": 17}
    assert [message.rules.seed for message in opened(cloud)] == [7, 8, 9]
    live.chat(n=2, seed=-1, max_tokens=1)
    assert [message.rules.seed for message in opened(cloud)[3:]] == [2**64 - 1, 0]
    live.chat(n=2, max_tokens=1)
    drawn = [message.rules.seed for message in opened(cloud)[5:]]
    assert drawn[1] == drawn[0] + 1


def test_streamed_choices_come_one_after_the_other(live: Live) -> None:
    *chunks, last, done = events(
        live.chat(n=3, max_tokens=5, stream=True, stream_options={"include_usage": True})
    )
    indices = [chunk["choices"][0]["index"] for chunk in chunks]
    assert indices == sorted(indices) and set(indices) == {0, 1, 2}
    for index in range(3):
        first, *_, end = (chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index)
        assert first["delta"]["role"] == "assistant"
        assert end["finish_reason"] == "length"
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 15, "total_tokens": 17}
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("hi", [[7, 8]]),
        (["hi", "ha"], [[7, 8], [7, 0]]),
        ([7, 8, 9], [[7, 8, 9]]),
        ([[7], [8, 9]], [[7], [8, 9]]),
    ],
)
def test_the_four_forms_of_a_prompt(
    live: Live, cloud: FakeCloud, prompt: Any, opens: list[list[int]]
) -> None:
    answer = live.complete(prompt, max_tokens=1, n=2, seed=5).json()
    asked = [(list(message.prompt), message.rules.seed) for message in opened(cloud)]
    assert asked == [(ids, seed) for ids in opens for seed in (5, 6)]
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(opens)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, opens))


def test_rules_reach_the_cloud(live: Live, cloud: FakeCloud) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "presence_penalty": 1.0, "frequency_penalty": -0.5}
    own = {"top_k": 40, "min_p": 0.25, "repetition_penalty": 1.5, "min_tokens": 2}
    live.chat(**fields, **own, logit_bias={"3": -100, "4": 2.5}, seed=1, max_tokens=4, mode="cloud")
    live.chat(max_tokens=1, seed=1, ignore_eos=True, mode="cloud", temperature=0)
    rules = _core.SamplingRules(**fields, **own, logit_bias=[(3, -100.0), (4, 2.5)], seed=1)
    first, second = opened(cloud)
    assert (first.rules, first.free_run, list(first.stop_ids)) == (rules, True, [EOS])
    assert (list(second.stop_ids), second.rules.temperature) == ([], 0.0)


def test_the_temperature_is_openais_when_none_is_given(live: Live, cloud: FakeCloud) -> None:
    live.chat(max_tokens=1)
    assert opened(cloud)[0].rules.temperature == 1.0


@pytest.mark.parametrize(
    ("form", "grammar"),
    [
        ({"type": "json_object"}, '{"type": "object"}'),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "null"}}},
            '{"type": "null"}',
        ),
    ],
)
def test_response_formats_become_grammars(
    live: Live, cloud: FakeCloud, form: dict[str, Any], grammar: str
) -> None:
    live.chat(response_format=form, mode="cloud", max_tokens=1)
    live.chat(response_format={"type": "text"}, mode="cloud", max_tokens=1)
    first, second = opened(cloud)
    assert (first.grammar_kind, first.grammar) == (_core.Grammar.json_schema, grammar)
    assert second.grammar_kind == _core.Grammar.none


def test_messages_of_parts_and_developers(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.role[0] }}.{{ message.content }}!{% endfor %}"
    bundle = make_bundle(tmp_path, chat_template=template)
    cloud = FakeCloud(TARGET)
    with serving(runtime(bundle, TARGET, TARGET, cloud=cloud)) as live:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
        assert live.http.post("/chat/completions", json={"messages": messages}).status_code == 200
    text = bundle.vocabulary_table.decode(opened(cloud)[0].prompt)
    assert text == "s.d!u.ab!"


def test_statistics_only_when_asked_for(live: Live) -> None:
    assert "acespec" not in live.chat(max_tokens=1).json()
    for answer in (
        live.chat(max_tokens=3, n=2, seed=9, acespec_stats=True),
        live.complete(max_tokens=3, n=2, seed=9, acespec_stats=True),
    ):
        first, second = answer.json()["acespec"]["stats"]
        assert (first["seed"], second["seed"]) == (9, 10)
        assert first["bytes_up"] > 0 and "rtt_ms" in first


def test_a_context_that_is_full_is_a_length(bundle: Bundle) -> None:
    cloud = FakeCloud(TARGET, max_context=10)
    with serving(runtime(bundle, TARGET, TARGET, cloud=cloud)) as live:
        answer = live.chat().json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}


def test_models(bundle: Bundle) -> None:
    with serving(runtime(bundle, TARGET, TARGET), name="org/model-1") as live:
        listed = live.http.get("/models").json()
        (model,) = listed["data"]
        assert (listed["object"], model["id"], model["object"]) == ("list", "org/model-1", "model")
        assert isinstance(model["created"], int) and model["owned_by"] == "acespec"
        assert live.http.get("/models/org/model-1").json() == model
        missing = live.http.get("/models/fake-64")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert live.chat(model="org/model-1", max_tokens=1).json()["model"] == "org/model-1"


def test_health(live: Live) -> None:
    assert live.http.get("../healthz").json() == {"status": "ok", "model": "fake-64", "requests": 0}


def test_the_fingerprint_names_the_pair(bundle: Bundle) -> None:
    prints = set()
    for name in ("one", "two"):
        cloud = FakeCloud(TARGET, alter=lambda message, name=name: renamed(message, name))
        with serving(runtime(bundle, TARGET, TARGET, cloud=cloud)) as live:
            prints |= {live.chat(max_tokens=1).json()["system_fingerprint"] for _ in range(2)}
    assert len(prints) == 2


def renamed(message: Any, name: str) -> Any:
    if not isinstance(message, _core.Welcome):
        return message
    return _core.Welcome(vocabulary=64, max_context=4096, max_nodes=64, target=name)
