// The messages as plain values. schemas/acespec.fbs is the truth of the bytes; codec.h converts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "acespec/base/ids.h"
#include "acespec/sampling/rules.h"
#include "acespec/sampling/sparse_row.h"

namespace acespec::wire {

inline constexpr std::uint16_t kProtocolVersion = 1;

using Fingerprint = std::array<std::uint8_t, 32>;
using SessionKey = std::array<std::uint8_t, 16>;

inline constexpr std::size_t kDigestBytes = 16;

/// Why a generation ended; `kNone` while it goes on.
enum class Finish : std::uint8_t { kNone = 0, kStop = 1, kLength = 2, kCancelled = 3, kContext = 4 };

enum class FaultCode : std::uint8_t {
  kProtocol = 1,   ///< malformed, out of order, or outside the limits
  kVersion = 2,    ///< protocol versions differ
  kTokenizer = 3,  ///< tokenizer or vocabulary differs
  kUnauthorized = 4,
  kBusy = 5,     ///< try again after retry_after_ms
  kRequest = 6,  ///< this request cannot be served (context too long, bad rules, token out of vocabulary)
  kInternal = 7,
  kGone = 8,  ///< the cloud keeps no context that begins as Open.held says
};

/// How the target decides on a drafted token (docs/protocol.md, "Token choice").
enum class Mode : std::uint8_t {
  kCoupled = 0,   ///< its own choice under the shared noise is the token
  kResidual = 1,  ///< accepts with min(1, p/q), else the edge draws from the residual
};

/// What the output must match; the text of it is `Open::grammar`.
enum class Grammar : std::uint8_t { kNone = 0, kJsonSchema = 1, kRegex = 2 };

inline constexpr TokenId kNoToken{-1};
inline constexpr int kMaxAlternatives = 20;  ///< of one token's log-probabilities

/// Up, first message of a connection.
struct Hello {
  std::uint16_t version = kProtocolVersion;
  Fingerprint tokenizer{};       ///< SHA-256 over id -> bytes and special ids (docs/protocol.md)
  std::uint32_t vocabulary = 0;  ///< ids of the tokenizer, padding not counted
  std::string drafter;           ///< name, for logs and messages
  /// CRC-32 of each run of 1,024 vocabulary entries: finds the first difference when fingerprints differ.
  std::vector<std::uint32_t> chunks;
  /// Key of the session that this connection goes on with, as Welcome gave it; empty for none.
  std::vector<std::uint8_t> resume{};
  bool operator==(const Hello&) const = default;
};

/// Down, the answer to Hello.
struct Welcome {
  std::uint16_t version = kProtocolVersion;
  std::uint32_t vocabulary = 0;
  std::uint32_t max_context = 0;  ///< prompt + output tokens of one request
  std::uint32_t max_nodes = 0;    ///< nodes of one Draft
  SessionKey session{};           ///< names the session when resuming
  std::string target;             ///< model name
  std::uint32_t keep_s = 0;  ///< seconds for which the context of an ended request is kept; 0: not at all
  bool operator==(const Welcome&) const = default;
};

/// Up: starts request `request`. Acts as round 0, a draft without nodes: its verdict carries the first token.
struct Open {
  std::uint16_t request = 0;
  std::vector<TokenId> prompt;
  SamplingRules rules;
  std::vector<TokenId> stop_ids;
  std::uint32_t max_tokens = 0;
  /// The cloud goes on by itself, one verdict per token, until a Draft or Cancel arrives (cloud-only
  /// streaming).
  bool free_run = false;
  /// Alternatives to report with every committed token's log-probability, 0 to 20; -1: no report.
  std::int8_t logprobs = -1;
  Grammar grammar_kind = Grammar::kNone;
  std::string grammar{};  ///< a JSON schema or a regular expression; empty exactly when the kind is none
  Mode mode = Mode::kCoupled;
  /// In place of `prompt`: a Zstandard frame of the ids (docs/protocol.md), which the session reads.
  std::vector<std::uint8_t> prompt_zstd{};
  /// The prompt begins with the first `held` tokens of a context that the cloud keeps for this session;
  /// `prompt` is what follows them.
  std::uint32_t held = 0;
  std::vector<std::uint8_t> held_digest{};  ///< of those tokens: 16 bytes of BLAKE2b; empty when `held` is 0
  bool operator==(const Open&) const = default;
};

/// Up: nodes of the token tree, numbered `first_node`, `first_node + 1`, ... in the order given.
struct Draft {
  std::uint16_t request = 0;
  std::uint16_t round = 0;       ///< counts drafts of the request, from 1; wraps after 65,535
  std::uint32_t base = 0;        ///< committed length (prompt included) at which the tree is rooted
  std::uint32_t first_node = 1;  ///< >= 1; 0 names the root
  /// Distance from a node to its parent, of this draft or an earlier one: `parent = node - offset`; 0 means
  /// the root. Empty for a chain: the first node hangs under the root, every other under the one before.
  std::vector<std::uint8_t> parent_offsets;
  std::vector<TokenId> tokens;  ///< may be empty: asks for one plain step
  bool free_run = false;        ///< as in Open, from here on
  /// Residual mode, one a token of a chain: its weight less 1 in the distribution it was drawn from, whose
  /// integer weights sum to 65,536 (sampling/quantised.h).
  std::vector<std::uint16_t> q{};
  /// Residual mode: what the edge drew after a rejection, committed at `base`; the chain hangs below it.
  TokenId resampled = kNoToken;
  /// Residual mode: asks for more tail samples of the row rejected at `base`, and nothing else.
  bool more_tail = false;
  bool wants_hint = false;  ///< the verdict may say how the cloud thinks that the text goes on
  bool operator==(const Draft&) const = default;
};

struct Alternative {
  TokenId token;
  float logprob = 0.0F;
  bool operator==(const Alternative&) const = default;
};

/// Log-probabilities, under the plain softmax of the target's logits, of a committed token and of the
/// likeliest ones at its position, likeliest first.
struct TokenLogprob {
  float logprob = 0.0F;
  std::vector<Alternative> top;
  bool operator==(const TokenLogprob&) const = default;
};

/// Down: `base` grew by the path to `accepted_node` and then by `tokens`.
struct Verdict {
  std::uint16_t request = 0;
  std::uint16_t round = 0;          ///< of the newest draft that the cloud had when it began
  std::uint32_t base = 0;           ///< committed length before this verdict
  std::uint32_t accepted_node = 0;  ///< deepest accepted node; 0 when none
  std::vector<TokenId> tokens;      ///< correction or bonus; empty only with a finish reason or a sparse row
  Finish finish = Finish::kNone;
  std::uint32_t queue_us = 0;   ///< from arrival to the start of the forward
  std::uint32_t verify_us = 0;  ///< the forward itself (padded time when emulated)
  /// One for each committed token, accepted ones included, when the Open asked; all with as many
  /// alternatives.
  std::vector<TokenLogprob> logprobs{};
  /// Residual mode: the token after the accepted ones was rejected under this distribution. The edge draws
  /// its successor and names it in the next Draft.
  std::optional<SparseRow> sparse{};
  std::uint32_t reused = 0;  ///< of round 0: prompt tokens whose keys and values were there already
  /// What may follow `tokens`, by the cloud's own guess: nothing of it is committed. Only while the request
  /// goes on, and not beside a sparse row.
  std::vector<TokenId> hint{};
  bool operator==(const Verdict&) const = default;
};

/// Up: stop request `request`; the cloud answers with a Verdict that finishes as cancelled, unless one is
/// already sent.
struct Cancel {
  std::uint16_t request = 0;
  bool operator==(const Cancel&) const = default;
};

/// Either way: no more messages will follow.
struct Close {
  std::string reason;
  bool operator==(const Close&) const = default;
};

/// Down: request `request` (0: the session) failed.
struct Fault {
  std::uint16_t request = 0;
  FaultCode code = FaultCode::kInternal;
  std::string message;
  std::uint32_t retry_after_ms = 0;
  bool operator==(const Fault&) const = default;
};

using Message = std::variant<Hello, Welcome, Open, Draft, Verdict, Cancel, Close, Fault>;

}  // namespace acespec::wire
