"""What a probe found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "slow", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``status``: "slow" runs, but not well; "bad" does not run. ``words``: what is
    there; ``facts``: the same for programs, their names are a contract; ``advice``: what to do about it.
    """

    name: str
    status: Status
    words: str
    facts: dict[str, Any] = field(default_factory=dict)
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "name": self.name,
            "status": self.status,
            "words": self.words,
            "facts": self.facts,
            "advice": self.advice,
        }
