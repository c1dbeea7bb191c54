"""Committed tokens into shown text: characters, stop ids and stop strings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from acespec_edge.stops import StopStrings
from acespec_edge.vocabulary import StreamDecoder, Vocabulary


class Output:
    """The returned part of a generation: ids and text that always describe the same tokens. Not
    thread-safe."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        stop_ids: Collection[int],
        stops: StopStrings,
        earlier: Sequence[int] = (),
    ) -> None:
        """``earlier``: output that goes on here, none of whose text is shown again."""
        self._decoder = StreamDecoder(vocabulary)
        self._decoder.push(earlier)
        self._stop_ids = stop_ids
        self._stops = stops
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.ended = False

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return "".join(self._texts)

    def push(self, tokens: Sequence[int]) -> tuple[str, list[int]]:
        """Takes committed tokens; returns the text they let out and the ids that are returned.

        Sets ``ended`` at a stop id or at the token that completes a stop string; tokens after it are dropped.
        """
        shown = ""
        kept = 0
        for token in tokens:
            if self.ended:
                break
            kept += 1
            if token in self._stop_ids:
                self.ended = True
            else:
                shown += self._stops.push(self._decoder.push([token]))
                self.ended = self._stops.stopped
        ids = list(tokens[:kept])
        self.token_ids += ids
        self._texts.append(shown)
        return shown, ids

    def finish(self) -> str:
        """Lets go of held text at the end. Call once, and last."""
        shown = self._stops.push(self._decoder.finish()) + self._stops.finish()
        self._texts.append(shown)
        self.ended = True
        return shown
