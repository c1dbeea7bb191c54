"""The Open of one request, until the cloud has answered it."""

from __future__ import annotations

from acespec_edge import _core
from acespec_edge.prefix import Text, digest_of
from acespec_edge.prompt_codec import compress


class Opening:
    """Says of the prompt what the cloud does not keep, and remembers what has been said, in case the cloud
    keeps less than was thought. Not thread-safe.
    """

    def __init__(self, prompt: Text, held: int, message: _core.Open) -> None:
        """``held``: tokens of the prompt that need not be sent. ``message``: without a prompt; taken over."""
        self._prompt = prompt
        self._message = message
        self._drafts: list[bytes] = []
        self._say_behind(held)

    @property
    def message(self) -> _core.Open:
        """The Open, its prompt packed or compressed, whichever is shorter."""
        return self._message

    def followed_by(self, draft: bytes) -> None:
        """A draft was sent before the answer. Bounded by the drafts that may wait for a verdict."""
        self._drafts.append(draft)

    def whole(self) -> tuple[_core.Open, list[bytes]] | None:
        """The Open with all of its prompt, and the drafts that followed: the same request once more; None
        when the Open had all of it.
        """
        if not self._message.held:
            return None
        self._say_behind(0)
        return self._message, self._drafts

    def _say_behind(self, held: int) -> None:
        message, rest = self._message, self._prompt[held:]
        message.held = held
        message.held_digest = digest_of(self._prompt[:held]) if held else b""
        frame = compress(rest)
        message.prompt = [] if frame is not None else rest.tolist()
        message.prompt_zstd = frame or b""
