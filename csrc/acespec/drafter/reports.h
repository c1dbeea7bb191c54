// What a drafter is told, and what it tells: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "acespec/base/ids.h"
#include "acespec/cache/state_cache.h"

namespace acespec {

struct DrafterOptions {
  std::size_t context =
      2048;  ///< committed tokens the drafter can hold; the engine's other slots are for branches
  /// Children grown under an expanded node from its logits; 0: the engine has no model, and what is drafted
  /// is looked up.
  std::size_t candidates = 4;
  std::size_t max_nodes = 256;  ///< expanded nodes held at a time, at most
  /// Temperature that turns the drafter's scores into the estimated probability that the target takes a
  /// candidate; below 1 because drafter and target agree more often than the drafter's own probabilities say.
  float sharpness = 0.7F;
  /// Log-probability, from the root, under which a branch is not worth a forward to Arm::kMeasured.
  float floor = -9.0F;
  /// Tokens that are looked up below a node, at most: where the text has gone before after the same tokens.
  /// 0: none. Residual mode looks nothing up, it draws from the model's own distribution.
  std::size_t lookup = 0;
};

/// Which nodes a step may expand: the arms of the ablation in AceSpec (arXiv:2609.02514).
enum class Arm : std::uint8_t {
  kMeasured,  ///< the likeliest, wherever they hang
  kSingle,    ///< the main chain alone
  kAllotted,  ///< the main chain and as many alternatives at each depth as Drafter::allot() says
  kNone,      ///< none, but the tip of the main chain for a step that extends it
};

/// Nodes given away to be sent, numbered on from those given before, parents before their children.
struct Taken {
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> parents;  ///< numbers of their parents; 0: the root
};

/// What one step did.
struct StepReport {
  std::size_t rows = 0;     ///< tokens forwarded
  double seconds = 0.0;     ///< of the engine's forward
  bool prefilling = false;  ///< the rows were committed tokens
  bool exhausted = false;   ///< nothing was worth expanding; no forward was made
};

/// What a verdict left of the speculation.
struct Recovery {
  bool hit = false;       ///< the new last token was in the cache, expanded: no forward is needed to go on
  std::size_t ready = 0;  ///< drafted tokens on the main chain from there
  double microseconds = 0.0;  ///< from the verdict to the chain being ready
};

/// What more of the tree, sent while all before it is being verified, lets the target do once that is done.
/// The text leaves what is verified at one of the new nodes; what hangs below that one can be verified next.
struct Prospect {
  float fits = 0.0F;      ///< probability that there is something to verify next
  float accepted = 0.0F;  ///< expected number of its nodes that the target takes
};

/// State for tests and support.
struct DrafterSnapshot {
  struct Node {
    NodeId id;
    NodeId parent;
    TokenId token;
    Position position;
    float log_weight = 0.0F;
    bool expanded = false;
    std::uint32_t number = 0;  ///< 0: the root, or not sent
  };
  CacheSnapshot cache;
  std::vector<Node> nodes;  ///< the root first
  std::size_t committed = 0;
  std::size_t pending = 0;  ///< committed tokens whose KV is still to be computed
};

}  // namespace acespec
