"""A drafter as fast as another one and of no use."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from acespec_edge.export.architecture import Source


class Shuffled:
    """A `Source` like another, every tensor's numbers in another order: the same one each time."""

    def __init__(self, source: Source) -> None:
        self.spec, self.name = source.spec, f"{source.name}, shuffled"
        self.licence, self.origin = source.licence, source.origin
        self.tokenizer_json, self.chat_template = source.tokenizer_json, source.chat_template
        self.bos_id, self.eos_ids = source.bos_id, source.eos_ids
        self._source = source

    def tensor(self, name: str) -> NDArray[np.float32]:
        """See `Source`."""
        values = self._source.tensor(name)
        random = np.random.default_rng(crc32(name.encode()))
        return random.permutation(values.ravel()).reshape(values.shape)
