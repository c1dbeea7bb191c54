"""Prompts as token ids of the target, by its own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from acespec_edge.bundle import Bundle
from acespec_edge.export.architecture import Source
from acespec_edge.export.sources import open_source
from acespec_edge.prompt import prompt_ids
from acespec_edge.vocabulary import Vocabulary
from tools.bench.data import Prompt, read_prompts


@dataclass(frozen=True)
class Speaker:
    """What turns a prompt into tokens: the part of a bundle that rendering a chat looks at."""

    name: str
    vocabulary_table: Vocabulary
    chat_template: str | None
    bos_id: int | None
    eos_ids: list[int]

    @classmethod
    def of(cls, source: Source) -> Speaker:
        """That of an opened model."""
        table = Vocabulary.from_tokenizer_json(source.tokenizer_json)
        return cls(source.name, table, source.chat_template, source.bos_id, list(source.eos_ids))

    @classmethod
    def open(cls, target: str) -> Speaker:
        """That of a model as ``load_verifier`` takes it."""
        return cls.of(open_source(target))

    def ids(self, text: str) -> list[int]:
        """One user turn as tokens, up to where the answer begins. Raises UsageError."""
        return prompt_ids(cast(Bundle, self), text)

    # As a bundle has it.
    with_one_bos = Bundle.with_one_bos


def all_prompts(path: Path) -> Sequence[Prompt]:
    """The prompts of a file of JSON lines (id, kind, prompt), kind by kind. Raises UsageError."""
    return [prompt for rows in read_prompts(path).values() for prompt in rows]
