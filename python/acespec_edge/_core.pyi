"""The native surface. Token, position and slot lists are lists of int; arrays are C-contiguous float32."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

class AcespecError(Exception): ...
class UsageError(AcespecError): ...
class PeerError(AcespecError): ...
class EngineError(AcespecError): ...

class SamplingRules:
    """How the next token is drawn.

    A LogitShaper first rules tokens out (-inf): all but ``allowed`` (empty: none), ``banned``, what a grammar
    forbids, stop ids before ``min_tokens`` tokens of output. It then adds ``logit_bias``, pairs of a token
    and a finite number, and applies ``repetition_penalty`` r > 0 (tokens of prompt and output: logit / r
    above 0, else logit * r), ``frequency_penalty`` and ``presence_penalty``, both in [-2, 2] (subtracted
    times the count in the output, and once if there). ``carried``: how many of the prompt's last tokens count
    as output, those of a request that goes on.

    The Sampler draws from the shaped row: ``temperature`` 0 is greedy and ignores the rest. Otherwise logits
    / ``temperature``; ``min_p`` drops tokens under min_p times the likeliest; ``top_k`` keeps the k likeliest
    (0: all); ``top_p`` keeps the smallest head of that mass (1: all). ``seed``: of the request's random
    numbers, 64 bits.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: list[tuple[int, float]]
    banned: list[int]
    allowed: list[int]
    min_tokens: int
    carried: int
    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = (),
        banned: Sequence[int] = (),
        allowed: Sequence[int] = (),
        min_tokens: int = 0,
        carried: int = 0,
    ) -> None: ...
    @property
    def greedy(self) -> bool: ...
    def validate(self) -> None:
        """Raises UsageError naming the first field that is out of range."""

class Sampler:
    """Draws with the coupled noise: ``argmax log p + G(seed, position, token)``. One thread at a time.

    Applies the rules of the draw alone: a LogitShaper shapes the row before. Logit rows are
    float32[>= vocabulary], C-contiguous, never copied; columns past the vocabulary are padding. Both methods
    release the GIL and raise UsageError for a row too short or bad rules, EngineError for NaN, +Inf or no
    finite logit.
    """

    def __init__(self, vocabulary: int) -> None: ...
    @property
    def vocabulary(self) -> int: ...
    def rank(
        self, logits: npt.NDArray[np.float32], rules: SamplingRules, position: int, count: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The ``count`` best candidates, best first: tokens, scores (log p + noise), log p.

        Fewer when the rules leave fewer. ``position``: absolute index of the token being chosen.
        """
    def choose(self, logits: npt.NDArray[np.float32], rules: SamplingRules, position: int) -> int:
        """The first of ``rank``."""
    def probabilities(self, logits: npt.NDArray[np.float32], rules: SamplingRules) -> npt.NDArray[np.float32]:
        """float32[vocabulary]: what ``choose`` draws from, on one token when greedy. Relative error 1e-6."""
    def quantise(self, logits: npt.NDArray[np.float32], rules: SamplingRules) -> QuantisedDistribution:
        """The same in integer weights, of the 4,096 likeliest tokens."""

class Stream(IntEnum):
    """Independent random numbers of one seed: a drafted token, whether the cloud takes it, the samples of a
    sparse row, the token in place of a rejected one.
    """

    draw = 0x41636544
    accept = 0x41636541
    tail = 0x41636554
    residual = 0x41636552

def stream_uniforms(seed: int, stream: Stream, position: int, attempt: int = 0) -> tuple[float, float]:
    """Two numbers in [0, 1), multiples of 2**-53: words 0 and 1, words 2 and 3 of that Philox block."""

class QuantisedDistribution:
    """Integer weights that sum to 65,536: floor(p * 65536), what is left to the likeliest."""

    def draw(self, word: int) -> int:
        """The token that a uniform 32-bit word picks, by its upper half, in the order of token ids."""
    def weight(self, token: int) -> int:
        """0 for a token that cannot be drawn."""
    @property
    def tokens(self) -> list[int]:
        """Those that can be drawn, by id."""

def residual_draw(row: SparseRow, q: QuantisedDistribution, seed: int, position: int) -> int | None:
    """Draws from ``(p - q)+``, renormalised, in place of a token drawn from ``q`` that was rejected under p.

    None: it wants more tail samples; with more of them behind the same row it goes on where it stopped.
    Raises UsageError for a row without a head.
    """

class LogitShaper:
    """The rules that change logits, for one request whose prompt and output it counts. One thread at a time.

    Operations are those of IEEE single precision, one by one: rows are equal bit for bit wherever shaped.
    """

    def __init__(
        self, vocabulary: int, rules: SamplingRules, prompt: Sequence[int], stop_ids: Sequence[int] = ()
    ) -> None:
        """Raises UsageError for bad rules, a token of them or of the prompt outside the vocabulary, more
        carried tokens than the prompt has."""
    def commit(self, tokens: Sequence[int]) -> None:
        """Appends to the output. Raises UsageError for a token outside the vocabulary."""
    def shapes(self) -> bool:
        """False when every row without a mask is left as it is, now and later."""
    def shape(
        self,
        logits: npt.NDArray[np.float32],
        path: Sequence[int] = (),
        mask: npt.NDArray[np.uint32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """The row after the committed tokens and ``path``, drafted tokens that count for this row alone.

        ``mask``: ceil(vocabulary / 32) words or more; bit t % 32 of word t // 32 allows token t. Returns a
        new float32[vocabulary], or ``logits`` itself when nothing is to be done. Releases the GIL. Raises
        UsageError for a row or a mask too short, or a token outside the vocabulary.
        """

def gumbel_words(seed: int, position: int, first: int, count: int) -> npt.NDArray[np.uint32]:
    """The 32-bit words of the coupled noise of tokens ``first`` to ``first + count - 1``."""

PROTOCOL_VERSION: int
DIGEST_BYTES: int

class Finish(IntEnum):
    none = 0
    stop = 1
    length = 2
    cancelled = 3
    context = 4

class FaultCode(IntEnum):
    protocol = 1
    version = 2
    tokenizer = 3
    unauthorized = 4
    busy = 5
    request = 6
    internal = 7
    gone = 8

class Mode(IntEnum):
    """How the target decides on a drafted token."""

    coupled = 0
    residual = 1

class Grammar(IntEnum):
    """What kind of text ``Open.grammar`` is."""

    none = 0
    json_schema = 1
    regex = 2

# Messages are values, equal when their fields are; docs/protocol.md says what those mean. A list read from a
# message is a copy: assign, do not append.

class Hello:
    version: int
    tokenizer: bytes
    vocabulary: int
    drafter: str
    chunks: list[int]
    resume: bytes
    def __init__(
        self,
        *,
        version: int = 1,
        tokenizer: bytes = ...,
        vocabulary: int = 0,
        drafter: str = "",
        chunks: Sequence[int] = (),
        resume: bytes = b"",
    ) -> None: ...

class Welcome:
    version: int
    vocabulary: int
    max_context: int
    max_nodes: int
    session: bytes
    target: str
    keep_s: int
    def __init__(
        self,
        *,
        version: int = 1,
        vocabulary: int = 0,
        max_context: int = 0,
        max_nodes: int = 0,
        session: bytes = ...,
        target: str = "",
        keep_s: int = 0,
    ) -> None: ...

class Open:
    request: int
    prompt: list[int]
    rules: SamplingRules
    stop_ids: list[int]
    max_tokens: int
    free_run: bool
    logprobs: int
    grammar_kind: Grammar
    grammar: str
    mode: Mode
    prompt_zstd: bytes
    held: int
    held_digest: bytes
    def __init__(
        self,
        *,
        request: int = 0,
        prompt: Sequence[int] = (),
        rules: SamplingRules = ...,
        stop_ids: Sequence[int] = (),
        max_tokens: int = 0,
        free_run: bool = False,
        logprobs: int = -1,
        grammar_kind: Grammar = ...,
        grammar: str = "",
        mode: Mode = ...,
        prompt_zstd: bytes = b"",
        held: int = 0,
        held_digest: bytes = b"",
    ) -> None: ...

class TokenLogprob:
    """Under the plain softmax of the target's logits. ``top``: the likeliest tokens with theirs, likeliest
    first.
    """

    logprob: float
    top: list[tuple[int, float]]
    def __init__(self, *, logprob: float = 0.0, top: Sequence[tuple[int, float]] = ()) -> None: ...

class SparseRow:
    """The target's distribution p where it rejected a token.

    ``head``: tokens with their p. ``tail_mass``: p of all others together. ``tail``: independent draws from p
    among those others, in order, each with its p.
    """

    head: list[tuple[int, float]]
    tail_mass: float
    tail: list[tuple[int, float]]
    def __init__(
        self,
        *,
        head: Sequence[tuple[int, float]] = (),
        tail_mass: float = 0.0,
        tail: Sequence[tuple[int, float]] = (),
    ) -> None: ...

class Draft:
    request: int
    round: int
    base: int
    first_node: int
    parent_offsets: list[int]
    tokens: list[int]
    free_run: bool
    q: list[int]
    resampled: int
    more_tail: bool
    wants_hint: bool
    def __init__(
        self,
        *,
        request: int = 0,
        round: int = 0,
        base: int = 0,
        first_node: int = 1,
        parent_offsets: Sequence[int] = (),
        tokens: Sequence[int] = (),
        free_run: bool = False,
        q: Sequence[int] = (),
        resampled: int = -1,
        more_tail: bool = False,
        wants_hint: bool = False,
    ) -> None: ...

class Verdict:
    request: int
    round: int
    base: int
    accepted_node: int
    tokens: list[int]
    finish: Finish
    queue_us: int
    verify_us: int
    logprobs: list[TokenLogprob]
    sparse: SparseRow | None
    reused: int
    hint: list[int]
    def __init__(
        self,
        *,
        request: int = 0,
        round: int = 0,
        base: int = 0,
        accepted_node: int = 0,
        tokens: Sequence[int] = (),
        finish: Finish = ...,
        queue_us: int = 0,
        verify_us: int = 0,
        logprobs: Sequence[TokenLogprob] = (),
        sparse: SparseRow | None = None,
        reused: int = 0,
        hint: Sequence[int] = (),
    ) -> None: ...

class Cancel:
    request: int
    def __init__(self, *, request: int = 0) -> None: ...

class Close:
    reason: str
    def __init__(self, *, reason: str = "") -> None: ...

class Fault:
    request: int
    code: FaultCode
    message: str
    retry_after_ms: int
    def __init__(
        self, *, request: int = 0, code: FaultCode = ..., message: str = "", retry_after_ms: int = 0
    ) -> None: ...

Message: TypeAlias = Hello | Welcome | Open | Draft | Verdict | Cancel | Close | Fault

class Limits:
    """Sizes a message may have: bytes in all, nodes of a Draft (and tokens of a Verdict), tokens of a prompt,
    stop ids, bytes of a text, tokens biased, banned or allowed (of each), bytes of a grammar, tokens and
    samples of a sparse row.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 1_048_576,
        max_nodes: int = 256,
        max_prompt: int = 131_072,
        max_stop_ids: int = 64,
        max_text: int = 4096,
        max_listed: int = 4096,
        max_grammar: int = 65_536,
        max_sparse: int = 4096,
    ) -> None: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def max_nodes(self) -> int: ...
    @property
    def max_prompt(self) -> int: ...
    @property
    def max_stop_ids(self) -> int: ...
    @property
    def max_text(self) -> int: ...
    @property
    def max_listed(self) -> int: ...
    @property
    def max_grammar(self) -> int: ...
    @property
    def max_sparse(self) -> int: ...

def encode(message: Message, limits: Limits = ...) -> bytes:
    """Raises UsageError when the message breaks a limit or its own invariants."""

def decode(data: bytes, limits: Limits = ...) -> Message:
    """Raises PeerError naming what is wrong with the bytes, a limit or an invariant."""

class EngineInfo:
    """What a loaded model is.

    ``logits_width`` may exceed ``vocabulary``, the drawable ids; ``slots`` are rows of the KV ring, of
    ``bytes_per_slot`` bytes over all layers; ``provider`` is the execution provider taken.
    """

    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def logits_width(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def bytes_per_slot(self) -> int: ...

class Engine:
    """One masked forward of a small language model over a KV ring. One forward at a time, from any thread."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def max_rows(self) -> int:
        """Largest T of one forward."""
    @property
    def visible_granule(self) -> int:
        """S of a forward must be a multiple of it."""
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        bias: npt.NDArray[np.float32],
        rows: Sequence[int],
    ) -> npt.NDArray[np.float32]:
        """Logits float32[R, logits_width] of the rows listed, a copy. Releases the GIL.

        ``tokens``, ``positions`` and ``slots`` have T entries; ``rows`` are ascending indices into T.
        ``bias`` is float32[T, S]: 0 where row t may see a slot, its own included, and -inf or at most -1e4
        elsewhere. Raises UsageError for sizes and ranges that do not fit, EngineError when the runtime fails.
        """

class BlankEngine(Engine):
    """The engine of a drafter without a model: it has no logits, only room for ``slots`` tokens."""

    def __init__(self, *, vocabulary: int, slots: int) -> None: ...

class OrtEngine(Engine):
    def __init__(
        self,
        model: str,
        library: str,
        *,
        slots: int,
        vocabulary: int,
        max_positions: int = 0,
        threads: int = 1,
        cores: Sequence[int] = (),
        spinning: bool = True,
        name: str = "",
        provider: str = "cpu",
        provider_options: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Loads ``model`` (path of model.onnx) on the ONNX Runtime in ``library`` and takes all memory.

        ``slots``: a multiple of 64. ``max_positions``: of the model's rotary table; 0 means as many as slots.
        ``threads``: of one operator; they spin within a forward when ``spinning``. ``cores``: numbers of the
        processor cores that those which it starts are kept to, any when empty; the caller's own thread, which
        takes part in a forward, is the caller's to place. ``name``: for messages, the path by default.
        ``provider``: cpu, cuda, tensorrt, or auto for the best that loads and keeps its keys and values
        right. ``provider_options``: of TensorRT, under ONNX Runtime's names for them.
        Raises UsageError for options out of range, EngineError when library, model or provider do not do.
        """

class FakeEngine(Engine):
    """Deterministic, without a model: logits are a hash of the tokens a row sees.

    Judges every mask: EngineError unless the visible slots hold exactly the positions 0 to the row's own,
    each once.
    """

    def __init__(
        self,
        vocabulary: int = 64,
        slots: int = 256,
        seed: int = 0,
        *,
        max_rows: int = 64,
        max_positions: int = 4096,
        sharpness: float = 2.0,
        disagreement: float = 0.0,
        base_seconds: float = 0.0,
        row_seconds: float = 0.0,
    ) -> None:
        """``seed`` names the target; a drafter of it has the same seed and a ``disagreement`` in [0, 1].

        At 0.1, 0.2, 0.3 the best tokens agree in 95, 87, 75 % of contexts. A forward takes at least
        ``base_seconds`` plus ``row_seconds`` for each row. Raises UsageError naming an option out of range.
        """

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The model as a function: logits float32[vocabulary] after ``tokens`` at positions 0..n-1."""

class TraceEngine(Engine):
    """Replays what a recorded drafter said along one text, without a model.

    A row on the text gets the scores recorded there, -inf for ids that were not; any other row the scores of
    a position that its path names.
    """

    def __init__(self, vocabulary: int, slots: int, *, max_rows: int = 64, max_positions: int = 4096) -> None:
        """``slots``: a multiple of 64. Raises UsageError for sizes that make no engine."""

    def set_record(
        self,
        prompt: Sequence[int],
        text: Sequence[int],
        top: npt.NDArray[np.int32],
        scores: npt.NDArray[np.float32],
    ) -> None:
        """Replays this from now on; keys of a prefix shared with the last record stay. ``top`` and
        ``scores``: [len(text), W], the ids recorded before each token of the text and their
        log-probabilities.

        Raises UsageError for an empty prompt or text, ids outside the vocabulary, scores that are not finite,
        shapes that do not fit. Not while a forward runs.
        """

class WidthCurve:
    """Seconds of a forward by its width in nodes, 1 to ``max_width``: never falls, linear between measured
    widths and beyond; until the second is measured, a node costs ``node_share`` of a forward of width 1.

    An outlier is clamped; a change of pace at whatever widths moves all after four samples. Raises UsageError
    for a width out of range, seconds that are not positive, or ``max_width`` above 4,096.
    """

    def __init__(self, max_width: int, first_guess_seconds: float, node_share: float) -> None: ...
    def observe(self, width: int, seconds: float) -> None: ...
    def seconds(self, width: int) -> float: ...
    def table(self) -> list[float]:
        """Seconds of all widths from 1 on."""
    def nodes_within(self, seconds: float, width: int) -> int:
        """Nodes that forwards of ``width``, and a narrower one at the end, expand in that time; 2**20 at
        most."""

class RoundTrip:
    """Smoothed round trip in seconds with the gains of RFC 6298; 0.15 until something is measured.

    ``at``: seconds on any one clock that never goes back. A ``rough`` sample stands in until there is another
    kind. After 30 s without a sample the next begins anew. A single outlier counts as smoothed + 8
    deviations. Raises UsageError for bad numbers and an ``at`` before the last.
    """

    def __init__(self) -> None: ...
    def observe(self, seconds: float, at: float, rough: bool = False) -> None: ...
    @property
    def known(self) -> bool: ...
    @property
    def seconds(self) -> float: ...
    @property
    def deviation(self) -> float: ...
    @property
    def quantile99(self) -> float:
        """Smoothed + 4 deviations, but no more than the largest sample of the 30 s up to the last one."""

class LinkEstimate:
    """What an exchange of messages costs by its bytes: ``rtt`` + price of a byte * bytes, up and down.

    Until something is measured: 150 ms, and 50 kbit/s each way. ``at`` and ``rough`` as in RoundTrip; a rough
    exchange bounds the price of a byte from above. Raises UsageError for bad numbers.
    """

    def __init__(self) -> None: ...
    def observe(
        self, bytes_up: float, bytes_down: float, seconds: float, at: float, rough: bool = False
    ) -> None:
        """``seconds`` from sending to having the answer, the peer's own work taken off."""
    @property
    def known(self) -> bool: ...
    def round_trip(self, bytes_up: float, bytes_down: float) -> float:
        """Expected seconds of an exchange."""
    @property
    def seconds_per_byte_up(self) -> float: ...
    @property
    def up_bps(self) -> float:
        """Bits a second, 1e12 at most."""
    @property
    def down_bps(self) -> float: ...
    @property
    def rtt(self) -> float:
        """Smoothed seconds of an empty exchange."""
    @property
    def deviation(self) -> float: ...

# For a chain of K tokens there are K + 1 depths: the place of each token, and that of the bonus token.

def stop_probabilities(acceptances: Sequence[float]) -> list[float]:
    """Where the target first leaves a chain with these acceptances: K + 1 probabilities, the last of the
    bonus. Raises UsageError for one not from 0 to 1."""

def allocate_uniform(length: int, budget: int) -> list[int]:
    """``budget`` alternatives, as many at each depth; what is left to the first ones."""

def allocate_nonuniform(
    stops: Sequence[float], costs: Sequence[float], budget: float, exponent: float
) -> list[int]:
    """Most ``sum stops[i] * (1 - (1 + b[i]) ** -exponent)`` with ``sum costs[i] * b[i] <= budget``.

    Closed form, rounded. Raises UsageError when sizes differ, a number is out of range, or the budget exceeds
    65,536 alternatives at one depth.
    """

def best_length(prefix: Sequence[float], seconds: Sequence[float], most: int) -> int:
    """The K from 1 to ``most`` with the largest ``(1 + sum(prefix[:K])) / seconds[K]``.

    ``prefix[i - 1]``: probability that the first i drafted tokens are all accepted, continued geometrically.
    ``seconds[K]``: what a round with K drafted tokens takes. Raises UsageError for a prefix that rises or is
    empty, seconds that fall, are not positive or fewer than ``most`` + 1.
    """

def best_count(weights: Sequence[float], seconds: Sequence[float], rate: float) -> int:
    """The n with the largest ``sum(weights[:n]) / rate - seconds[n]``; ``rate`` > 0: tokens a second.

    ``weights``: probabilities that the target's text runs through a node, best first. ``seconds[n]``: what
    sending and verifying n nodes takes. Raises UsageError for a weight not from 0 to 1 or rising, seconds
    that fall or are fewer than the weights and one, or a ``rate`` that is not positive.
    """

class NgramIndex:
    """A text of at most ``capacity`` tokens, and where each run of 2 to 8 of them was last gone on from."""

    def __init__(self, capacity: int) -> None: ...
    def assign(self, text: Sequence[int]) -> None: ...
    def append(self, token: int) -> None: ...
    def find(self, path: Sequence[int]) -> tuple[int, int] | None:
        """Of the longest run, 8 at most, that ends the text with ``path`` behind it and stands in the text
        with a token after it: its length, and the index of that token; of several the last."""

class DrafterOptions:
    def __init__(
        self,
        *,
        context: int = 2048,
        candidates: int = 4,
        max_nodes: int = 256,
        sharpness: float = ...,
        floor: float = -9.0,
        lookup: int = 0,
    ) -> None:
        """``context``: committed tokens held; the engine's other slots are for branches.

        ``candidates``: children grown under an expanded node from its logits; 0 for an engine without a
        model, with ``lookup``: tokens looked up below a node at most, where the text went on after the same
        tokens before; 0: none. ``max_nodes``: nodes expanded between two
        verdicts. ``sharpness``: temperature that turns scores into the estimated probability that the target
        takes a candidate. ``floor``: log-probability under which a branch is not worth a forward to
        ``Arm.measured``.
        """
    @property
    def context(self) -> int: ...
    @property
    def candidates(self) -> int: ...
    @property
    def max_nodes(self) -> int: ...
    @property
    def sharpness(self) -> float: ...
    @property
    def floor(self) -> float: ...
    @property
    def lookup(self) -> int: ...

class Arm(IntEnum):
    """Which nodes a step may expand: the likeliest wherever they hang, the main chain alone, the main chain
    and the alternatives that ``Drafter.allot`` opens, or none but the tip of a chain that is to be extended.
    """

    measured = 0
    single = 1
    allotted = 2
    none = 3

class Taken:
    """Nodes given away to be sent, numbered on from those given before, parents before their children."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def parents(self) -> list[int]:
        """Numbers of their parents; 0: the root."""

class StepReport:
    @property
    def rows(self) -> int:
        """Tokens forwarded."""
    @property
    def seconds(self) -> float:
        """Of the engine's forward."""
    @property
    def prefilling(self) -> bool:
        """The rows were committed tokens."""
    @property
    def exhausted(self) -> bool:
        """Nothing was worth expanding; no forward was made."""

class Recovery:
    @property
    def hit(self) -> bool:
        """The new last token was in the cache, expanded: no forward is needed to go on."""
    @property
    def ready(self) -> int:
        """Drafted tokens on the main chain from there."""
    @property
    def microseconds(self) -> float:
        """From the verdict to the chain being ready."""

class Drafter:
    """One request's speculation: begin(), step() while waiting, take() or take_chain() to send,
    apply_verdict() for what came back.

    Several drafts may be in flight. Nodes given away are numbered from 1 on in each request, in the order
    given; 0 is the root, the last committed token. A sent node stays sent, with its number, while it lives:
    through every verdict that it descends from.

    Not thread-safe; one call at a time, from any thread.
    """

    def __init__(self, engine: Engine, options: DrafterOptions = ...) -> None:
        """Raises UsageError when the engine's ring lacks room for the context and 16 branch slots."""
    def begin(
        self,
        prompt: Sequence[int],
        rules: SamplingRules,
        stop_ids: Sequence[int] = (),
        residual: bool = False,
        lookup: bool = True,
    ) -> int:
        """Starts a request; returns how many prompt tokens keep the keys and values of the last one.

        ``lookup`` false: nothing is looked up, so that the main chain is the model's own text.

        Nothing is drafted below a stop id. ``residual``: the main chain is drawn from the drafter's own
        distribution, quantised, for a target that accepts with min(1, p/q); how many tokens are then sent
        must not depend on what they are. Raises UsageError on an empty prompt, one longer than the context,
        an unknown token, bad rules.
        """
    def set_mask(self, source: Callable[[list[int]], npt.NDArray[np.uint32] | None] | None) -> None:
        """Holds the drafts of this request to a grammar; ``begin`` ends it.

        ``step`` calls ``source`` with the tokens from the committed end down to each node it expands; it
        returns the mask of what may follow, as ``LogitShaper.shape`` takes it. What it raises ends the step,
        as an engine's failure does.
        """
    def step(self, width: int, extend: bool) -> StepReport:
        """One forward; releases the GIL.

        While committed tokens lack keys and values it feeds those, then it expands up to ``width`` nodes: the
        tip of the main chain first when ``extend`` (exhausted when it cannot be), then what the arm in force
        says.
        Raises EngineError, after which the state is as before.
        """
    def set_arm(self, arm: Arm) -> None:
        """Which nodes ``step`` expands from now on, in this request and later ones; ``measured`` at first."""
    def allot(self, alternatives: Sequence[int]) -> None:
        """For ``Arm.allotted``: at depth i of the main chain (0: the children of the root) the first
        ``alternatives[i]`` siblings of the chain's child may be expanded, and what follows them by first
        children; those with the shortest continuation first.

        Depths count from the root of the moment, verdict or none. Raises UsageError when there are more
        depths than positions in the context.
        """
    def survey(self, most: int) -> list[float]:
        """Weights (probability that the target's text runs through a node, from the root) of the nodes that
        ``take(most)`` would give, greatest first."""
    def frontier(self, most: int) -> list[float]:
        """Weights of the nodes that step(most, False) would expand, greatest first; none while tokens are
        pending."""

    def prospect(self, count: int) -> tuple[float, float]:
        """What take(count) would give a target that has just verified all that was sent before: the expected
        number of its nodes that it takes next, and the probability that there is something to verify."""

    def take(self, count: int) -> Taken:
        """The ``count`` unsent nodes of greatest weight, fewer if fewer there are, expanded or not, whose
        parents are the root, sent, or among them.

        Left out is what a verdict would leave no position behind, and what would be numbered more than 255
        above its parent. Residual mode sends chains: UsageError, and ``survey`` finds nothing.
        """
    def skip_numbers(self, count: int) -> None:
        """Leaves the next ``count`` numbers to nodes that the caller sends on its own, from elsewhere than
        this tree."""
    def take_chain(self, length: int) -> Taken:
        """The next ``length`` tokens of the main chain below those sent; fewer if fewer are ready, none when
        the first would be numbered more than 255 above its parent. Residual mode has one chain in flight:
        UsageError when its verdict has not come."""
    def chain_acceptances(self, most: int) -> list[float]:
        """Probability that the target takes each of the first ``most`` nodes of the main chain, given that it
        took the one above."""
    def acceptance(self) -> float:
        """Share of first candidates that the target took, recent ones counting more, over requests of this
        one's kind: greedy, sampled, in residual mode; 0.8 before anything is known."""
    @property
    def chain_weights(self) -> list[int]:
        """Residual mode: the weight less 1 of each token of the chain in flight, for ``Draft.q``."""
    def resample(self, depth: int, row: SparseRow) -> int | None:
        """Residual mode: the token in place of number ``depth`` (from 0) of the chain in flight, which the
        target rejected under ``row``; commit it with ``apply_verdict``, behind the accepted ones.

        None: more tail samples are needed, behind those of ``row``, for another call. Raises UsageError when
        no such token is in flight, PeerError when the row leads to a token outside the vocabulary.
        """
    def apply_verdict(self, tokens: Sequence[int]) -> Recovery:
        """Commits ``tokens``: the accepted ones and the correction or bonus, in order. Whatever descends from
        them stays, sent or not.

        Raises UsageError when they are none, do not fit the context, or lie outside the vocabulary.
        """
    @property
    def ready(self) -> int:
        """Drafted tokens on the main chain, sent or not."""
    @property
    def unsent(self) -> int:
        """Those of them below the last sent one, which ``take_chain`` gives next."""
    @property
    def committed(self) -> int:
        """Tokens committed, the prompt included."""
    @property
    def pending(self) -> int:
        """Committed tokens without keys and values; 0 once the root is expanded."""

    @property
    def room(self) -> int:
        """Tokens that can still be committed."""
    def snapshot(self) -> dict[str, Any]:
        """Nodes (the root first) and the cache's counts, for tests and support."""
    def check(self) -> list[str]:
        """Violated invariants, a line each; empty when sound."""
