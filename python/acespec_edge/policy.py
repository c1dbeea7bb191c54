"""What may be done to speed a request up: the arms of the comparison, and the one that chooses by
itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from acespec_edge.errors import UsageError

Send = Literal["chain", "tree"]
Explore = Literal["none", "single", "uniform", "nonuniform", "measured"]
Power = Literal["full", "save"]

_SAVING: Final = 0.75
"""Work price when power is to be saved."""


@dataclass(frozen=True, slots=True)
class Policy:
    """None leaves a choice to the controller, which takes what its estimates say is faster.

    ``send``: the main chain alone, or the best nodes of the whole tree. ``length``: tokens of the chain.
    ``by_confidence``: a chain ends where the drafter is no longer sure enough of its tokens; else at the
    length that is best on average, K*.
    ``nodes``: most nodes of one draft. ``explore``: what the drafter grows while a verdict is under way:
    nothing; the main chain; alternatives too, as many at every depth ("uniform"), by the closed form for a
    power-law residual ("nonuniform"), or wherever the drafter's calibrated probabilities are highest
    ("measured"). ``budget``: nodes grown in one round; None: what the time until the verdict allows.
    ``in_flight``: send more of the tree before the verdict. ``go_on``: the cloud decodes by itself while it
    waits for a draft. ``hint``: where a verdict missed the tree, what the cloud guesses is sent in place of
    what the drafter would have to draft. ``cloud_only``: leave the target alone where drafting does not pay.
    ``work_price``: seconds of waiting that a second of forwards counts as, for its energy, while nobody waits
    for them.

    Arms of AceSpec (arXiv:2609.02514), branch allocation and its ablation.
    """

    name: str
    send: Send = "tree"
    length: int | None = None
    by_confidence: bool = True
    nodes: int | None = None
    explore: Explore = "measured"
    budget: int | None = None
    in_flight: bool | None = None
    go_on: bool | None = None
    hint: bool | None = None
    cloud_only: bool | None = None
    work_price: float = 0.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("length", self.length, 0),
            ("nodes", self.nodes, 1),
            ("budget", self.budget, 1),
            ("work_price", self.work_price, 0),
        ):
            if value is not None and not value >= least:
                raise UsageError(f"policy {self.name}: {name} is {value}: it must be {least} or more")


_FIXED: Final = Policy("chain", send="chain", in_flight=False, go_on=False, hint=False, cloud_only=False)
_AVERAGE: Final = replace(_FIXED, by_confidence=False)

POLICIES: Final[dict[str, Policy]] = {
    policy.name: policy
    for policy in (
        Policy("auto"),
        _FIXED,
        replace(_FIXED, name="tree", send="tree"),
        replace(_FIXED, name="in-flight", send="tree", in_flight=True),
        replace(_FIXED, name="going-on", send="tree", go_on=True),
        replace(_FIXED, name="hinted", send="tree", hint=True),
        replace(_AVERAGE, name="acespec", explore="nonuniform"),
        replace(_AVERAGE, name="acespec-single", explore="single"),
        replace(_AVERAGE, name="acespec-uniform", explore="uniform"),
        replace(_AVERAGE, name="acespec-measured"),
        replace(_AVERAGE, name="vanilla", explore="none"),
        replace(_AVERAGE, name="picospec", explore="single", in_flight=True),
        replace(_FIXED, name="one-bet", send="tree", explore="single"),
    )
}
"""auto: everything that pays. chain, tree, in-flight, going-on, hinted: its fixed choices. acespec: the
paper's, with its ablation arms. vanilla: synchronous speculation. picospec: one chain in a pipeline. one-bet:
only the likeliest leaf and what follows it are drafted ahead.
"""


def named_policy(policy: str | Policy) -> Policy:
    """Raises UsageError for a name that is none of POLICIES."""
    if isinstance(policy, Policy):
        return policy
    if policy not in POLICIES:
        raise UsageError(f"policy is {policy!r}: it must be one of {', '.join(POLICIES)}")
    return POLICIES[policy]


def of_length(policy: Policy, length: int | None) -> Policy:
    """The policy, with chains of ``length`` tokens if that is given: one that sends trees becomes one of
    chains."""
    if length is None:
        return policy
    return replace(POLICIES["chain"] if policy.send == "tree" else policy, length=length)


def at_power(policy: Policy, power: str) -> Policy:
    """The policy on a device that has power ("full") or should save it ("save"): on a fast network, where a
    token is worth little time, fewer forwards are worth their energy, and so B* is smaller.

    Raises UsageError for another power.
    """
    if power not in get_args(Power):
        raise UsageError(f"power is {power!r}: it must be one of {', '.join(get_args(Power))}")
    return replace(policy, work_price=_SAVING) if power == "save" else policy
