"""EdgeRuntime over plain models: what comes out is what the target alone would write, however it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import UsageError
from acespec_edge.result import Piece
from tests.python.edge_kit import DRAFTER, PROMPT, TARGET, ids_of, runtime
from tests.python.fake_bundle import EMOJI_IDS, ENTRIES, EOS, make_bundle, with_eos
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter, decode_plainly, scripted

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle")


def shown_ids(pieces: Sequence[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.token_ids]


@pytest.mark.parametrize("draft_length", [0, 1, 2, 5, 8])
def test_g2_any_draft_length_gives_the_targets_ids(bundle: Bundle, draft_length: int) -> None:
    with runtime(bundle, draft_length=draft_length) as edge:
        result = edge.generate(PROMPT, max_tokens=40)
    assert result.token_ids == decode_plainly(TARGET, PROMPT, 40)
    assert result.text == "".join(ENTRIES[token] for token in result.token_ids)
    assert result.finish_reason == "length"


def test_an_agreeing_drafter_saves_rounds(bundle: Bundle) -> None:
    with runtime(bundle, drafter=TARGET, draft_length=8, cloud=FakeCloud(TARGET, lag=4)) as edge:
        stats = edge.generate(PROMPT, max_tokens=46).stats
    assert stats.rounds == 5  # 1 + 5 * (8 + 1)
    assert stats.accepted_mean == 8
    assert stats.tokens_per_round == 9
    assert stats.hit_rate == 1.0
    assert stats.recover_us == 1.0
    assert 0 < stats.max_draft_bytes < 1200
    assert stats.bytes_up > stats.max_draft_bytes
    assert stats.bytes_down > stats.max_verdict_bytes > 0


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_e4_exactly_max_tokens(bundle: Bundle, max_tokens: int) -> None:
    with runtime(bundle) as edge:
        pieces = list(stream := edge.stream(PROMPT, max_tokens=max_tokens))
        result = stream.result
    assert len(result.token_ids) == max_tokens
    assert result.usage.completion_tokens == max_tokens
    assert result.usage.prompt_tokens == len(PROMPT)
    assert shown_ids(pieces) == result.token_ids
    assert result.finish_reason == "length"


@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize("draft_length", [0, 1, 5, 8])
def test_e1_a_stop_id_ends_it_wherever_it_falls_in_a_block(
    bundle: Bundle, place: int, draft_length: int
) -> None:
    script = [10 + index for index in range(30)]
    stop = script[place]
    target = scripted(script, len(PROMPT))
    cloud = FakeCloud(target)
    with runtime(with_eos(bundle, stop), target, target, cloud=cloud, draft_length=draft_length) as edge:
        result = edge.generate(PROMPT, max_tokens=30)
    assert result.token_ids == script[: place + 1]
    assert result.text == "".join(ENTRIES[token] for token in script[:place])
    assert result.finish_reason == "stop"
    assert result.usage.completion_tokens == place + 1
    assert not any(isinstance(message, _core.Cancel) for message in cloud.received)


@pytest.mark.parametrize(("cap", "count", "reason"), [(5, 3, "stop"), (3, 3, "stop"), (2, 2, "length")])
def test_e2_stop_goes_before_length(bundle: Bundle, cap: int, count: int, reason: str) -> None:
    target = scripted([10, 11, 12, 20, 21, 22], len(PROMPT))
    with runtime(with_eos(bundle, 12), target, target) as edge:
        result = edge.generate(PROMPT, max_tokens=cap)
    assert (len(result.token_ids), result.finish_reason) == (count, reason)


@pytest.mark.parametrize("offset", range(12))
@pytest.mark.parametrize("draft_length", [0, 2, 8])
def test_e3_a_stop_string_over_tokens_and_blocks(bundle: Bundle, offset: int, draft_length: int) -> None:
    text = "abcdefghijkl"[:offset] + "xyz" + "mnopqrst"
    target = scripted(ids_of(text), len(PROMPT))
    cloud = FakeCloud(target)
    with runtime(bundle, target, target, cloud=cloud, draft_length=draft_length) as edge:
        pieces = list(stream := edge.stream(PROMPT, max_tokens=20, stop=["xyz", "never"]))
        result = stream.result
        assert result.text == "".join(piece.text for piece in pieces) == text[:offset]
        assert result.token_ids == shown_ids(pieces) == ids_of(text[: offset + 3])
        assert result.finish_reason == "stop"
        assert result.usage.completion_tokens == offset + 3
        again = edge.generate(PROMPT, max_tokens=3)
        assert again.token_ids == ids_of(text)[:3]
    assert any(isinstance(message, _core.Cancel) for message in cloud.received)


def test_a_stop_that_never_completes_is_shown_at_the_end(bundle: Bundle) -> None:
    target = scripted(ids_of("abxy"), len(PROMPT))
    with runtime(bundle, target, target) as edge:
        result = edge.generate(PROMPT, max_tokens=4, stop="xyz")
        assert edge.generate(PROMPT, max_tokens=4, stop=None).token_ids == result.token_ids
    assert (result.text, result.finish_reason) == ("abxy", "length")


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("draft_length", [0, 1, 2, 3, 8])
def test_u1_an_emoji_across_block_borders(bundle: Bundle, before: int, draft_length: int) -> None:
    script = [*ids_of("abcdef"[:before]), *EMOJI_IDS, *ids_of("ok")]
    target = scripted(script, len(PROMPT))
    with runtime(bundle, target, target, draft_length=draft_length) as edge:
        pieces = list(edge.stream(PROMPT, max_tokens=len(script)))
    assert "".join(piece.text for piece in pieces) == "abcdef"[:before] + "\N{GRINNING FACE}" + "ok"
    assert not any("\ufffd" in piece.text for piece in pieces)


@pytest.mark.parametrize("short", range(10))
def test_c1_the_draft_shrinks_towards_the_clouds_limit(bundle: Bundle, short: int) -> None:
    cloud = FakeCloud(TARGET, max_context=len(PROMPT) + 20 - short)
    with runtime(bundle, cloud=cloud) as edge:
        result = edge.generate(PROMPT, max_tokens=20)
    assert result.token_ids == decode_plainly(TARGET, PROMPT, 20 - short)
    assert result.finish_reason == ("context" if short else "length")


@pytest.mark.parametrize("context", range(2, 30))
def test_c2_beyond_the_drafters_context_the_target_goes_on_alone(bundle: Bundle, context: int) -> None:
    cloud = FakeCloud(TARGET)
    drafter = FakeDrafter(DRAFTER, context=context)
    with runtime(bundle, drafter=drafter, cloud=cloud, context=context) as edge:
        result = edge.generate(PROMPT, max_tokens=40)
    assert result.token_ids == decode_plainly(TARGET, PROMPT, 40)
    assert all(draft.base + len(draft.tokens) < context for draft in cloud.drafts if draft.tokens)


def test_c3_prompts_that_cannot_be_served(bundle: Bundle) -> None:
    cloud = FakeCloud(TARGET, max_context=30)
    with runtime(bundle, cloud=cloud) as edge:
        for empty in ("", [], ()):
            with pytest.raises(UsageError, match="prompt is empty"):
                edge.generate(empty)
        with pytest.raises(UsageError, match=r"30 tokens, .* 29 are the most"):
            edge.generate([1] * 30)
        assert len(edge.generate([1] * 29, max_tokens=5).token_ids) == 1
        assert edge.generate(" ", max_tokens=2).usage.prompt_tokens == 1
        with pytest.raises(UsageError, match=r"prompt\[1\] is 64"):
            edge.generate([1, 64])


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_g3_prompts_around_the_prefill_chunk(bundle: Bundle, chunk: int) -> None:
    for length in {1, chunk - 1, chunk, chunk + 1} - {0}:
        prompt = [index % 40 for index in range(length)]
        with runtime(bundle, drafter=FakeDrafter(DRAFTER, chunk=chunk)) as edge:
            assert edge.generate(prompt, max_tokens=20).token_ids == decode_plainly(TARGET, prompt, 20)


def test_cloud_mode_needs_no_drafter(bundle: Bundle) -> None:
    cloud = FakeCloud(TARGET)
    with EdgeRuntime(bundle, lambda: cloud, mode="cloud") as edge:
        pieces = list(stream := edge.stream(PROMPT, max_tokens=12))
    assert stream.result.token_ids == decode_plainly(TARGET, PROMPT, 12)
    assert [len(piece.token_ids) for piece in pieces] == [1] * 12
    assert {piece.origin for piece in pieces} == {"target"}
    assert cloud.drafts == []
    assert stream.result.stats.rounds == 0


def test_edge_mode_needs_no_cloud_and_marks_its_tokens(bundle: Bundle) -> None:
    with EdgeRuntime(bundle, mode="edge", drafter=FakeDrafter(DRAFTER), draft_length=8) as edge:
        pieces = list(stream := edge.stream(PROMPT, max_tokens=12))
    assert stream.result.token_ids == decode_plainly(DRAFTER, PROMPT, 12)
    assert {piece.origin for piece in pieces} == {"edge"}
    assert stream.result.finish_reason == "length"


def test_edge_mode_ends_at_stop_ids_and_at_its_context(bundle: Bundle) -> None:
    script = scripted([10, 11, 12, 13], len(PROMPT))
    with EdgeRuntime(with_eos(bundle, 12), mode="edge", drafter=FakeDrafter(script)) as edge:
        assert edge.generate(PROMPT).token_ids == [10, 11, 12]
    with EdgeRuntime(bundle, mode="edge", drafter=FakeDrafter(script, context=8), context=8) as edge:
        result = edge.generate(PROMPT)
    assert (result.token_ids, result.finish_reason) == ([10, 11, 12], "context")


def test_modes_of_one_runtime(bundle: Bundle) -> None:
    with runtime(bundle) as edge:
        plain = decode_plainly(TARGET, PROMPT, 8)
        assert edge.generate(PROMPT, max_tokens=8, mode="cloud").token_ids == plain
        assert edge.generate(PROMPT, max_tokens=8, mode="edge").token_ids == decode_plainly(
            DRAFTER, PROMPT, 8
        )
        assert edge.generate(PROMPT, max_tokens=8).token_ids == plain


def test_a_result_is_not_there_before_the_end(bundle: Bundle) -> None:
    with runtime(bundle) as edge, edge.stream(PROMPT, max_tokens=5) as stream:
        with pytest.raises(UsageError, match="no result yet"):
            _ = stream.result
        assert [token for piece in stream for token in piece.token_ids] == stream.result.token_ids


def test_requests_from_many_threads_take_turns(bundle: Bundle) -> None:
    results: dict[int, list[int]] = {}
    with runtime(bundle) as edge:

        def ask(first: int) -> None:
            results[first] = edge.generate([first, 2, 3], max_tokens=20).token_ids

        threads = [threading.Thread(target=ask, args=(first,)) for first in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {first: decode_plainly(TARGET, [first, 2, 3], 20) for first in range(6)}


def test_many_requests_leave_nothing_behind(bundle: Bundle) -> None:
    with runtime(bundle) as edge:
        threads = threading.active_count()
        for _ in range(100):
            edge.generate(PROMPT, max_tokens=10)
        assert threading.active_count() <= threads


async def test_async_twins(bundle: Bundle) -> None:
    plain = decode_plainly(TARGET, PROMPT, 20)
    with runtime(bundle) as edge:
        assert (await edge.agenerate(PROMPT, max_tokens=20)).token_ids == plain
        stream = edge.astream(PROMPT, max_tokens=20)
        seen = [token async for piece in stream for token in piece.token_ids]
        assert seen == stream.result.token_ids == plain
        both = await asyncio.gather(
            edge.agenerate(PROMPT, max_tokens=9), edge.agenerate(PROMPT, max_tokens=7)
        )
        assert [result.token_ids for result in both] == [plain[:9], plain[:7]]


def test_a_seed_is_drawn_and_told(bundle: Bundle) -> None:
    cloud = FakeCloud(TARGET)
    with runtime(bundle, cloud=cloud) as edge:
        seeds = {edge.generate(PROMPT, max_tokens=1, temperature=1.0).stats.seed for _ in range(5)}
        assert edge.generate(PROMPT, max_tokens=1, seed=11).stats.seed == 11
    assert len(seeds) == 5
    opens = [message for message in cloud.received if isinstance(message, _core.Open)]
    assert [message.rules.seed for message in opens[-1:]] == [11]
    assert {message.rules.seed for message in opens[:-1]} == seeds


def test_rules_reach_the_cloud(bundle: Bundle) -> None:
    cloud = FakeCloud(TARGET)
    with runtime(bundle, cloud=cloud) as edge:
        edge.generate(PROMPT, max_tokens=1, temperature=0.5, top_k=3, top_p=0.5, min_p=0.25, seed=7)
    (opened,) = (message for message in cloud.received if isinstance(message, _core.Open))
    assert opened.rules == _core.SamplingRules(temperature=0.5, top_k=3, top_p=0.5, min_p=0.25, seed=7)
    assert list(opened.stop_ids) == [EOS]


def test_prompts_go_through_the_chat_template(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role[:1] }}:{{ m.content }}\n{% endfor %}a:"
    bundle = make_bundle(tmp_path / "chat", chat_template=template)
    cloud = FakeCloud(TARGET)
    with runtime(bundle, cloud=cloud) as edge:
        edge.generate("hi", max_tokens=1)
        edge.generate("hi", max_tokens=1, raw=True)
        edge.generate([{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}], max_tokens=1)
    encode = bundle.vocabulary_table.encode
    prompts = [list(message.prompt) for message in cloud.received if isinstance(message, _core.Open)]
    assert prompts == [encode("u:hi\na:"), encode("hi"), encode("s:x\nu:hi\na:")]


@pytest.mark.parametrize("mode", ["auto", "cloud", "edge"])
def test_a_chat_goes_on_inside_its_last_message(tmp_path: Path, mode: Any) -> None:
    template = (
        "{% if tools %}{{ tools[0].name }}\n{% endif %}"
        "{% for m in messages %}{{ m.role[:1] }}:{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    bundle = make_bundle(tmp_path / "chat", chat_template=template)
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the b"}]
    prompt = bundle.vocabulary_table.encode("find\nu:hi\na:the b")
    model = scripted(ids_of("est one."), len(prompt))
    with runtime(bundle, model, model) as edge:
        options = {"tools": [{"name": "find"}], "continue_final_message": True}
        result = edge.generate(talk, max_tokens=8, mode=mode, **options)
    assert result.text == "est one."
    assert result.usage.prompt_tokens == len(prompt)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tools": [{}]}, "tools"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": [""]}, r"stop\[0\]"),
        ({"mode": "fast"}, "mode is 'fast'"),
    ],
)
def test_wrong_options_name_the_field(bundle: Bundle, options: dict[str, Any], complaint: str) -> None:
    with runtime(bundle) as edge, pytest.raises(UsageError, match=complaint):
        edge.generate(PROMPT, **options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mode": "auto"}, "mode auto needs a cloud"),
        ({"threads": 0}, "threads is 0"),
        ({"power": "low"}, "power is 'low': it must be one of full, save"),
        ({"width": 0}, "width is 0"),
        ({"draft_length": -1}, "draft_length is -1"),
        ({"draft_length": 257}, "draft_length is 257"),
        ({"cache_mb": 0}, "cache_mb is 0"),
        ({"timeout": 0}, "timeout is 0"),
        ({"cloud": "http://x"}, "cloud is 'http://x'"),
        ({"cloud": "local"}, "target must name"),
        ({"cloud": "ws://127.0.0.1:9", "target": "m"}, "only cloud='local'"),
        ({"cloud": "ws://127.0.0.1:9", "ca": "ca.pem"}, "not encrypted"),
        ({"cloud": "wss://127.0.0.1:9", "ca": "missing.pem"}, "missing.pem"),
        ({"cloud": "ws://127.0.0.1:9", "token_file": "missing"}, "token_file 'missing'"),
    ],
)
def test_wrong_runtime_options_name_the_field(
    bundle: Bundle, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        EdgeRuntime(bundle, drafter=FakeDrafter(DRAFTER), **options)
