// A distribution in few bytes, from which the residual of a rejected draft can be drawn exactly.
#pragma once

#include <vector>

#include "acespec/base/ids.h"

namespace acespec {

struct TokenProbability {
  TokenId token;
  float p = 0.0F;
  bool operator==(const TokenProbability&) const = default;
};

/// The target's distribution p at the position of a rejected token. Plain value.
struct SparseRow {
  std::vector<TokenProbability> head;  ///< distinct tokens and their p, not empty
  float tail_mass = 0.0F;              ///< p of all other tokens together
  /// Independent draws from p among those other tokens, in the order drawn, each with its p (of the whole).
  std::vector<TokenProbability> tail;
  bool operator==(const SparseRow&) const = default;
};

}  // namespace acespec
