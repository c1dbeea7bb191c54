"""What is compared: the paradigms by name, and the contenders that one comparison makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from acespec_edge.errors import UsageError
from acespec_edge.request import Mode, Sampling

How = Literal["runtime", "headed", "dssd", "split", "colocated"]
"""Over the runtime; beside a cloud with a DLite head; over the runtime with dense rows coming down; by one of
the bench's own two."""

Text = Literal["target", "rounded", "drafter"]
"""Whose the greedy text is: the target's, token for token; the target's but for the rounding of what travels;
the drafter's own."""

Drafts = Literal["model", "lookup", "both", "useless"]
"""What drafts, as `--drafter` names it; or a model whose weights are shuffled."""

_LARGEST_BUDGET = 4096


@dataclass(frozen=True)
class Paradigm:
    """A way to run the target. `policy`: of the runtime. `residual`: whether p/q decides in place of shared
    noise, never, when sampling, or in greedy runs as well.
    """

    name: str
    title: str
    how: How = "runtime"
    mode: Mode = "auto"
    policy: str = "auto"
    residual: Literal["never", "sampled", "always"] = "never"
    text: Text = "target"
    drafter: Drafts = "model"

    @property
    def is_alone(self) -> bool:
        """Whether it is the target alone, which all others are held against."""
        return self.name == "cloud"

    def sampling(self, temperature: float) -> Sampling:
        """The rule by which drafted tokens are accepted at a temperature."""
        if self.residual == "always" or (self.residual == "sampled" and temperature > 0):
            return "residual"
        return "coupled"

    def repeats_the_target(self, temperature: float) -> bool:
        """Whether every token must be that of the target alone with the same seed. The residual rule keeps
        the distribution when sampling, not the tokens."""
        return self.text == "target" and (temperature == 0 or self.sampling(temperature) == "coupled")


PARADIGMS = {
    paradigm.name: paradigm
    for paradigm in (
        Paradigm("cloud", "Cloud autoregressive", mode="cloud"),
        Paradigm("cloud+dlite", "Cloud with a head", how="headed", mode="cloud"),
        Paradigm("vanilla", "Vanilla speculative", policy="vanilla", residual="sampled"),
        Paradigm("split", "Split inference", how="split", text="rounded"),
        Paradigm("dssd", "DSSD", how="dssd", policy="vanilla", residual="always"),
        Paradigm("picospec", "PicoSpec", policy="picospec"),
        Paradigm("one-bet", "One bet", policy="one-bet"),
        Paradigm("colocated", "Drafter in the cloud", how="colocated"),
        Paradigm("acespec-single", "AceSpec, no alternatives", policy="acespec-single"),
        Paradigm("acespec-uniform", "AceSpec, uniform", policy="acespec-uniform"),
        Paradigm("acespec", "AceSpec", policy="acespec"),
        Paradigm("acespec-measured", "AceSpec, measured", policy="acespec-measured"),
        Paradigm("chain", "Chain", policy="chain"),
        Paradigm("tree", "Tree", policy="tree"),
        Paradigm("in-flight", "In flight", policy="in-flight"),
        Paradigm("going-on", "Going on", policy="going-on"),
        Paradigm("auto", "Auto", policy="auto"),
        Paradigm("auto+useless", "Auto, useless drafter", policy="auto", drafter="useless"),
        Paradigm("lookup", "Auto, lookup alone", policy="auto", drafter="lookup"),
        Paradigm("auto+lookup", "Auto and lookup", policy="auto", drafter="both"),
        Paradigm("hinted+dlite", "Hinted by a head", how="headed", policy="hinted"),
        Paradigm("going-on+dlite", "Going on with a head", how="headed", policy="going-on"),
        Paradigm("auto+dlite", "Auto with a head", how="headed", policy="auto"),
        Paradigm("edge", "Edge only", mode="edge", text="drafter"),
    )
}

DEFAULT = ("cloud", "vanilla", "split", "dssd", "picospec", "one-bet", "colocated", "acespec", "auto", "edge")
QUICK = ("cloud", "vanilla", "acespec", "auto", "colocated")
ABLATION = ("acespec-single", "acespec-uniform", "acespec", "acespec-measured")
"""The arms of branch allocation; the paper's own is the non-uniform one."""

_SWEPT = "acespec-measured"


@dataclass(frozen=True)
class Sweep:
    """One quantity varied under the measured arm: `budget` (nodes expanded a round) or `temperature`."""

    name: Literal["budget", "temperature"]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Contender:
    """A paradigm at a temperature; `budget` replaces its policy's."""

    label: str
    paradigm: Paradigm
    temperature: float
    budget: int | None = None


def parse_sweep(text: str) -> Sweep:
    """Reads `budget=10,20` or `temperature=0,0.3`. Raises UsageError."""
    name, _, listed = text.partition("=")
    try:
        values = tuple(float(part) for part in listed.split(","))
    except ValueError:
        raise UsageError(
            f"sweep is {text!r}: give numbers, as in budget=10,20 or temperature=0,0.3"
        ) from None
    if name == "budget":
        if not all(value.is_integer() and 1 <= value <= _LARGEST_BUDGET for value in values):
            raise UsageError(f"sweep is {text!r}: a budget is 1 to {_LARGEST_BUDGET} nodes")
        return Sweep("budget", values)
    if name == "temperature":
        for value in values:
            check_temperature(value)
        return Sweep("temperature", values)
    raise UsageError(f"sweep is {text!r}: budget=... and temperature=... can be swept")


def check_temperature(value: float) -> None:
    """Raises UsageError unless it is 0 to 100."""
    if not 0 <= value <= 100:
        raise UsageError(f"temperature is {value:g}: it must be 0 to 100")


def contenders(names: Sequence[str], temperature: float, sweep: Sweep | None = None) -> list[Contender]:
    """What runs, in order: the target alone first, which all others are held against, whether it is named or
    not. A sweep goes without `names`. Raises UsageError for a name that is none, or is given twice.
    """
    if sweep is not None:
        budgets = [int(value) for value in sweep.values] if sweep.name == "budget" else [None]
        temperatures = sweep.values if sweep.name == "temperature" else (temperature,)
        found = [_cloud(value) for value in temperatures]
        swept = PARADIGMS[_SWEPT]
        for value in temperatures:
            for budget in budgets:
                what = f"T={value:g}" if budget is None else f"B={budget}"
                found.append(Contender(f"{_SWEPT} {what}", swept, value, budget))
        return _distinct(found)
    unknown = [name for name in names if name not in PARADIGMS]
    if unknown:
        raise UsageError(f"paradigms has {unknown[0]!r}: there are {', '.join(PARADIGMS)}")
    others = [name for name in names if not PARADIGMS[name].is_alone]
    return _distinct(
        [_cloud(temperature), *(Contender(name, PARADIGMS[name], temperature) for name in others)]
    )


def _cloud(temperature: float) -> Contender:
    label = "cloud" if temperature == 0 else f"cloud T={temperature:g}"
    return Contender(label, PARADIGMS["cloud"], temperature)


def _distinct(found: list[Contender]) -> list[Contender]:
    labels = [contender.label for contender in found]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"{label} is given twice: once is enough, --repeat runs it again")
    return found
