// The target's half of residual mode, written out plainly, and the chi-square that tells whether both halves
// together draw from the target's distribution.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acespec/base/philox.h"
#include "acespec/sampling/residual.h"

namespace acespec::test {

/// p's `head` likeliest tokens, the mass of the rest, and no sample of it yet.
inline SparseRow sparse_row(std::span<const float> p, std::size_t head) {
  SparseRow row;
  for (std::size_t i = 0; i < p.size(); ++i) {
    row.head.push_back({TokenId{static_cast<std::int32_t>(i)}, p[i]});
  }
  std::ranges::stable_sort(row.head, [](const auto& a, const auto& b) { return a.p > b.p; });
  for (std::size_t i = head; i < row.head.size(); ++i) {
    row.tail_mass += row.head[i].p;
  }
  row.head.resize(std::min(head, row.head.size()));
  return row;
}

/// One more sample of the tail.
inline void add_sample(SparseRow& row, std::span<const float> p, std::uint64_t seed, Position position) {
  const auto attempt = static_cast<std::uint32_t>(row.tail.size());
  const PhiloxWords words = stream_words(seed, Stream::kTail, position, attempt);
  double point = uniform(words.w0, words.w1) * static_cast<double>(row.tail_mass);
  TokenProbability last;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const TokenId token{static_cast<std::int32_t>(i)};
    if (p[i] > 0.0F && std::ranges::find(row.head, token, &TokenProbability::token) == row.head.end()) {
      last = {token, p[i]};
      point -= static_cast<double>(p[i]);
      if (point < 0.0) {
        break;
      }
    }
  }
  row.tail.push_back(last);
}

/// Whether the target takes a token that was drafted with probability `q`.
inline bool accepts(float p, double q, std::uint64_t seed, Position position) {
  const PhiloxWords words = stream_words(seed, Stream::kAccept, position, 0);
  return uniform(words.w0, words.w1) * q < static_cast<double>(p);
}

/// Of what was `seen` against probabilities that sum to 1; cells expected fewer than 5 times count as one.
inline double chi_square(std::span<const int> seen, std::span<const double> p) {
  double total = 0.0;
  for (const int count : seen) {
    total += count;
  }
  double statistic = 0.0;
  double rare_seen = 0.0;
  double rare_expected = 0.0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double expected = total * p[i];
    if (expected < 5.0) {
      rare_seen += seen[i];
      rare_expected += expected;
    } else {
      statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
  }
  if (rare_expected > 0.0) {
    statistic += (rare_seen - rare_expected) * (rare_seen - rare_expected) / rare_expected;
  } else if (rare_seen > 0.0) {
    statistic += 1e9;  // what cannot be drawn was drawn
  }
  return statistic;
}

}  // namespace acespec::test
