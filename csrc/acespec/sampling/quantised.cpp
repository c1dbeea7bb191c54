#include "acespec/sampling/quantised.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "acespec/base/error.h"

namespace acespec {

QuantisedDistribution::QuantisedDistribution(std::span<const Candidate> likeliest) {
  if (likeliest.empty() || likeliest.size() > kMostTokens) {
    throw UsageError("a quantised distribution is made of " + std::to_string(likeliest.size()) +
                     " candidates; 1 to " + std::to_string(kMostTokens) + " would be right");
  }
  std::uint32_t left = kTotal;
  std::vector<Entry> weights;  // `end` holds the weight until the entries are in order
  for (const Candidate& candidate : likeliest.subspan(1)) {
    const double share = std::floor(std::exp(static_cast<double>(candidate.log_p)) * kTotal);
    const std::uint32_t weight = std::min(static_cast<std::uint32_t>(share), left - 1);
    if (weight > 0) {
      weights.push_back({candidate.token, weight});
      left -= weight;
    }
  }
  weights.push_back({likeliest.front().token, left});
  std::ranges::sort(weights, {}, &Entry::token);
  std::uint32_t end = 0;
  for (Entry& entry : weights) {
    end += entry.end;
    entry.end = end;
  }
  weights.shrink_to_fit();
  entries_ = std::move(weights);
}

TokenId QuantisedDistribution::draw(std::uint32_t word) const {
  return std::ranges::upper_bound(entries_, word >> 16U, {}, &Entry::end)->token;
}

std::uint32_t QuantisedDistribution::weight(TokenId token) const noexcept {
  const auto at = std::ranges::lower_bound(entries_, token, {}, &Entry::token);
  if (at == entries_.end() || at->token != token) {
    return 0;
  }
  return at->end - (at == entries_.begin() ? 0U : (at - 1)->end);
}

std::vector<TokenId> QuantisedDistribution::tokens() const {
  std::vector<TokenId> result;
  result.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    result.push_back(entry.token);
  }
  return result;
}

}  // namespace acespec
