#include "acespec/sampling/rules.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "acespec/base/error.h"

namespace acespec {
namespace {

// Written so that NaN fails.
void check_range(const char* field, float value, float low, float high) {
  if (!(value >= low && value <= high)) {
    throw UsageError(std::string(field) + " is " + std::to_string(value) + "; it must lie between " +
                     std::to_string(low) + " and " + std::to_string(high));
  }
}

void check_token(const char* field, std::size_t index, TokenId token) {
  if (token.value() < 0) {
    throw UsageError(std::string(field) + "[" + std::to_string(index) + "] names token " +
                     std::to_string(token.value()) + "; token ids are not negative");
  }
}

void check_tokens(const char* field, const std::vector<TokenId>& tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check_token(field, i, tokens[i]);
  }
}

void check_biases(const std::vector<LogitBias>& biases) {
  std::vector<TokenId> tokens;
  tokens.reserve(biases.size());
  for (std::size_t i = 0; i < biases.size(); ++i) {
    check_token("logit_bias", i, biases[i].token);
    if (!std::isfinite(biases[i].bias)) {
      throw UsageError("logit_bias of token " + std::to_string(biases[i].token.value()) + " is " +
                       std::to_string(biases[i].bias) + "; it must be finite (ban the token instead)");
    }
    tokens.push_back(biases[i].token);
  }
  std::sort(tokens.begin(), tokens.end());
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice != tokens.end()) {
    throw UsageError("logit_bias names token " + std::to_string(twice->value()) +
                     " twice; one bias for a token would be right");
  }
}

}  // namespace

void SamplingRules::validate_draw() const {
  if (!(temperature >= 0.0F) || std::isinf(temperature)) {
    throw UsageError("temperature is " + std::to_string(temperature) + "; it must be finite and at least 0");
  }
  if (top_k < 0) {
    throw UsageError("top_k is " + std::to_string(top_k) + "; it must be at least 0 (0 keeps all)");
  }
  if (!(top_p > 0.0F && top_p <= 1.0F)) {
    throw UsageError("top_p is " + std::to_string(top_p) + "; it must be above 0 and at most 1");
  }
  if (!(min_p >= 0.0F && min_p <= 1.0F)) {
    throw UsageError("min_p is " + std::to_string(min_p) + "; it must lie between 0 and 1");
  }
}

void SamplingRules::validate() const {
  validate_draw();
  if (!(repetition_penalty > 0.0F) || std::isinf(repetition_penalty)) {
    throw UsageError("repetition_penalty is " + std::to_string(repetition_penalty) +
                     "; it must be finite and above 0 (1 changes nothing)");
  }
  check_range("presence_penalty", presence_penalty, -2.0F, 2.0F);
  check_range("frequency_penalty", frequency_penalty, -2.0F, 2.0F);
  check_biases(logit_bias);
  check_tokens("banned", banned);
  check_tokens("allowed", allowed);
}

}  // namespace acespec
