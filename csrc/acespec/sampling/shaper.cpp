#include "acespec/sampling/shaper.h"

#include <algorithm>
#include <limits>
#include <string>

#include "acespec/base/error.h"

namespace acespec {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr std::size_t kWordBits = 32;

}  // namespace

LogitShaper::LogitShaper(std::size_t vocabulary, const SamplingRules& rules, std::span<const TokenId> prompt,
                         std::span<const TokenId> stop_ids)
    : vocabulary_(vocabulary), rules_(rules) {
  rules_.validate();
  check("banned", rules_.banned);
  check("allowed", rules_.allowed);
  for (const LogitBias& entry : rules_.logit_bias) {
    check("logit_bias", {&entry.token, 1});
  }
  check("prompt", prompt);
  if (rules_.carried > prompt.size()) {
    throw UsageError("carried is " + std::to_string(rules_.carried) + "; the prompt has " +
                     std::to_string(prompt.size()) + " tokens");
  }
  for (const TokenId token : stop_ids) {
    if (token.value() >= 0 && token.index() < vocabulary_) {
      stop_ids_.push_back(token);
    }
  }
  if (penalizes()) {
    counts_.resize(vocabulary_);
    prompted_.resize(vocabulary_);
    seen_.reserve(vocabulary_);  // so that a row is shaped as a whole or not at all
  }
  if (shapes()) {
    row_.resize(vocabulary_);
  }
  const std::size_t own = prompt.size() - rules_.carried;
  if (penalizes()) {
    for (const TokenId token : prompt.first(own)) {
      if (!prompted_[token.index()]) {
        prompted_[token.index()] = true;
        seen_.push_back(token);
      }
    }
  }
  commit(prompt.subspan(own));
}

bool LogitShaper::penalizes() const noexcept {
  return rules_.repetition_penalty != 1.0F || rules_.presence_penalty != 0.0F ||
         rules_.frequency_penalty != 0.0F;
}

bool LogitShaper::withholds_stops(std::size_t drafted) const noexcept {
  return !stop_ids_.empty() && output_ + drafted < rules_.min_tokens;
}

bool LogitShaper::shapes() const noexcept {
  return penalizes() || withholds_stops(0) || !rules_.logit_bias.empty() || !rules_.banned.empty() ||
         !rules_.allowed.empty();
}

void LogitShaper::check(const char* what, std::span<const TokenId> tokens) const {
  for (const TokenId token : tokens) {
    if (token.value() < 0 || token.index() >= vocabulary_) {
      throw UsageError(std::string(what) + " names token " + std::to_string(token.value()) +
                       "; the vocabulary has " + std::to_string(vocabulary_));
    }
  }
}

void LogitShaper::count(TokenId token) {
  if (counts_[token.index()]++ == 0 && !prompted_[token.index()]) {
    seen_.push_back(token);
  }
}

// Takes back the last count() that has not been taken back.
void LogitShaper::discount(TokenId token) {
  if (--counts_[token.index()] == 0 && !prompted_[token.index()]) {
    seen_.pop_back();
  }
}

void LogitShaper::commit(std::span<const TokenId> tokens) {
  check("output", tokens);
  output_ += tokens.size();
  if (penalizes()) {
    for (const TokenId token : tokens) {
      count(token);
    }
  }
}

void LogitShaper::rule_out(std::span<const float> logits, std::span<const std::uint32_t> mask,
                           bool stops_withheld) {
  if (rules_.allowed.empty()) {
    std::copy_n(logits.begin(), vocabulary_, row_.begin());
  } else {
    std::fill(row_.begin(), row_.end(), kNever);
    for (const TokenId token : rules_.allowed) {
      row_[token.index()] = logits[token.index()];
    }
  }
  for (const TokenId token : rules_.banned) {
    row_[token.index()] = kNever;
  }
  if (stops_withheld) {
    for (const TokenId token : stop_ids_) {
      row_[token.index()] = kNever;
    }
  }
  if (mask.empty()) {
    return;
  }
  for (std::size_t first = 0; first < vocabulary_; first += kWordBits) {
    const std::uint32_t word = mask[first / kWordBits];
    if (word == UINT32_MAX) {
      continue;
    }
    const std::size_t size = std::min(kWordBits, vocabulary_ - first);
    for (std::size_t bit = 0; bit < size; ++bit) {
      if ((word >> bit & 1U) == 0U) {
        row_[first + bit] = kNever;
      }
    }
  }
}

void LogitShaper::penalize() {
  for (const TokenId token : seen_) {
    float& logit = row_[token.index()];
    logit = logit > 0.0F ? logit / rules_.repetition_penalty : logit * rules_.repetition_penalty;
    const std::uint32_t times = counts_[token.index()];
    if (times > 0) {
      logit -= rules_.frequency_penalty * static_cast<float>(times);
      logit -= rules_.presence_penalty;
    }
  }
}

std::span<const float> LogitShaper::shape(std::span<const float> logits, std::span<const TokenId> path,
                                          std::span<const std::uint32_t> mask) {
  if (logits.size() < vocabulary_) {
    throw UsageError("logits has " + std::to_string(logits.size()) + " columns; the vocabulary needs " +
                     std::to_string(vocabulary_));
  }
  if (!mask.empty() && mask.size() * kWordBits < vocabulary_) {
    throw UsageError("mask has " + std::to_string(mask.size()) + " words; the vocabulary needs " +
                     std::to_string((vocabulary_ + kWordBits - 1) / kWordBits));
  }
  check("path", path);
  if (mask.empty() && !shapes()) {
    return logits;
  }
  row_.resize(vocabulary_);
  rule_out(logits, mask, withholds_stops(path.size()));
  for (const LogitBias& entry : rules_.logit_bias) {
    row_[entry.token.index()] += entry.bias;
  }
  if (penalizes()) {
    for (const TokenId token : path) {
      count(token);
    }
    penalize();
    for (std::size_t index = path.size(); index-- > 0;) {
      discount(path[index]);
    }
  }
  return row_;
}

}  // namespace acespec
