#include "acespec/sampling/residual.h"

#include <algorithm>

#include "acespec/base/error.h"
#include "acespec/base/philox.h"

namespace acespec {
namespace {

double excess(const TokenProbability& entry, const QuantisedDistribution& q) {
  return std::max(0.0, static_cast<double>(entry.p) - q.probability(entry.token));
}

/// The head's token at `point` of its weights laid end to end; nullopt for the tail behind them. Without a
/// tail no rounding leads past the last weight.
std::optional<TokenId> pick(const SparseRow& row, const QuantisedDistribution& q, double point) {
  std::optional<TokenId> last;
  for (const TokenProbability& entry : row.head) {
    const double weight = excess(entry, q);
    if (weight > 0.0) {
      last = entry.token;
    }
    point -= weight;
    if (point < 0.0) {
      return entry.token;
    }
  }
  return row.tail_mass > 0.0F ? std::nullopt : last;
}

}  // namespace

std::optional<TokenId> residual_draw(const SparseRow& row, const QuantisedDistribution& q, std::uint64_t seed,
                                     Position position) {
  if (row.head.empty() || q.empty()) {
    throw UsageError("a residual is drawn from a row with a head, against a distribution");
  }
  double total = static_cast<double>(row.tail_mass);
  for (const TokenProbability& entry : row.head) {
    total += excess(entry, q);
  }
  if (!(total > 0.0)) {
    return std::ranges::max_element(row.head, {}, &TokenProbability::p)->token;
  }
  for (std::uint32_t attempt = 0;; ++attempt) {
    const PhiloxWords words = stream_words(seed, Stream::kResidual, position, attempt);
    if (const auto token = pick(row, q, uniform(words.w0, words.w1) * total)) {
      return token;
    }
    // Every attempt that gets here takes one sample.
    if (attempt >= row.tail.size()) {
      return std::nullopt;
    }
    const TokenProbability& sample = row.tail[attempt];
    if (uniform(words.w2, words.w3) * static_cast<double>(sample.p) < excess(sample, q)) {
      return sample.token;
    }
  }
}

}  // namespace acespec
