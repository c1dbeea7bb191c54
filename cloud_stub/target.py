"""What one served target accepts: identity, limits, and the checks that need nothing but those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.judge import Terms
from cloud_stub.verifiers.base import Verifier, drawable

_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """``vocabulary``: drawable ids. Times in seconds; ``keep_kv``: for which contexts of ended requests are
    kept. ``max_waiting``: drafts of a request that may queue up.
    """

    name: str
    vocabulary: int
    fingerprint: bytes
    chunks: tuple[int, ...]
    max_context: int
    max_nodes: int = 256
    max_waiting: int = 64
    handshake_timeout: float = 10.0
    idle_timeout: float = 600.0
    session_timeout: float = 86_400.0
    max_text: int = 1000
    keep_kv: float = 0.0

    @property
    def limits(self) -> _core.Limits:
        """Limits for the codec: generous for prompts, so that one too long for the target gets an answer
        that says so instead of a broken connection.
        """
        max_prompt = max(131072, self.max_context)
        return _core.Limits(max_bytes=8 * max_prompt, max_nodes=self.max_nodes, max_prompt=max_prompt)

    def welcome(self, session_key: bytes) -> _core.Welcome:
        """The answer to a Hello that fits."""
        return _core.Welcome(
            vocabulary=self.vocabulary,
            max_context=self.max_context,
            max_nodes=self.max_nodes,
            session=session_key,
            target=self.name,
            keep_s=int(self.keep_kv),
        )

    def terms(self, request: _core.Open, prompt: Sequence[int]) -> Terms:
        """The terms of a request; raises UsageError naming what cannot be served.

        ``prompt``: the whole of it, whatever the message holds.
        """
        length = len(prompt)
        if length == 0:
            raise UsageError("Open.prompt is empty: at least one token is needed (a BOS token will do)")
        if length >= self.max_context:
            raise UsageError(
                f"Open.prompt has {length} tokens: {self.name} holds {self.max_context} of prompt and output "
                f"together, so at most {self.max_context - 1} of prompt"
            )
        if request.max_tokens == 0:
            raise UsageError("Open.max_tokens is 0: at least 1 would be right")
        self.check_tokens("Open.prompt", prompt)
        self._check_rules(request.rules, length)
        return Terms(
            rules=request.rules,
            stop_ids=frozenset(request.stop_ids),
            prompt_length=length,
            max_tokens=request.max_tokens,
            max_context=self.max_context,
            mode=request.mode,
            logprobs=request.logprobs,
            grammar_kind=request.grammar_kind,
            grammar=request.grammar,
        )

    def _check_rules(self, rules: _core.SamplingRules, prompt_length: int) -> None:
        rules.validate()
        self.check_tokens("Open.banned", rules.banned)
        self.check_tokens("Open.allowed", rules.allowed)
        self.check_tokens("Open.logit_bias", [token for token, _ in rules.logit_bias])
        if rules.carried > prompt_length:
            raise UsageError(f"Open.carried is {rules.carried}: the prompt has {prompt_length} tokens")

    def check_tokens(self, field: str, tokens: Sequence[int]) -> None:
        """Raises UsageError naming the first token that is not in the vocabulary."""
        for index, token in enumerate(tokens):
            if not 0 <= token < self.vocabulary:
                raise UsageError(f"{field}[{index}] is {token}: ids run from 0 to {self.vocabulary - 1}")

    def describe_mismatch(self, hello: _core.Hello) -> str:
        """Says what differs between the edge's tokenizer and this target's."""
        return (
            f"the drafter's tokenizer is not the target's: {hello.drafter or 'the drafter'} has "
            f"{hello.vocabulary:,} tokens (fingerprint {hello.tokenizer.hex()[:8]}), {self.name} has "
            f"{self.vocabulary:,} ({self.fingerprint.hex()[:8]}); {self._first_difference(hello)}. "
            "Use a drafter of the target's family"
        )

    def _first_difference(self, hello: _core.Hello) -> str:
        for index, (theirs, ours) in enumerate(zip(hello.chunks, self.chunks, strict=False)):
            if theirs != ours:
                last = min((index + 1) * _CHUNK, max(self.vocabulary, hello.vocabulary)) - 1
                return f"the first difference is among ids {index * _CHUNK} to {last}"
        shorter = min(self.vocabulary, hello.vocabulary)
        return f"ids from {shorter} on exist on one side only"


def target_of(verifier: Verifier, **limits: Any) -> Target:
    """The target a verifier serves; ``limits``: fields of ``Target`` that are not the verifier's to say."""
    return Target(
        name=verifier.name,
        vocabulary=drawable(verifier),
        fingerprint=verifier.vocabulary.fingerprint,
        chunks=tuple(verifier.vocabulary.chunks),
        max_context=verifier.max_context,
        **limits,
    )
