#include "acespec/wire/fields.h"

#include <cmath>

namespace acespec::wire {
namespace {

/// Length of the UTF-8 sequence at `at` when it is well formed (Unicode 15, table 3-7), else 0.
std::size_t utf8_sequence(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  std::size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    low = lead == 0xE0 ? 0xA0 : low;
    high = lead == 0xED ? 0x9F : high;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    low = lead == 0xF0 ? 0x90 : low;
    high = lead == 0xF4 ? 0x8F : high;
  }
  if (length == 0 || text.size() - at < length || byte(1) < low || byte(1) > high) {
    return 0;
  }
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) {
      return 0;
    }
  }
  return length;
}

}  // namespace

Problem check_text(const char* field, std::string_view text, std::size_t most) {
  if (text.size() > most) {
    return std::string(field) + " has " + std::to_string(text.size()) + " bytes; at most " +
           std::to_string(most) + " are allowed";
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_sequence(text, at);
    if (length == 0) {
      return std::string(field) + " is not UTF-8 at byte " + std::to_string(at);
    }
    at += length;
  }
  return std::nullopt;
}

Problem check_count(const char* field, std::size_t count, std::size_t most) {
  if (count > most) {
    return std::string(field) + " has " + std::to_string(count) + " entries; at most " +
           std::to_string(most) + " are allowed";
  }
  return std::nullopt;
}

Problem check_token(const char* field, std::size_t index, TokenId token) {
  if (token.value() < 0) {
    return std::string(field) + "[" + std::to_string(index) + "] is " + std::to_string(token.value()) +
           "; token ids are not negative";
  }
  return std::nullopt;
}

Problem check_tokens(const char* field, std::span<const TokenId> tokens, std::size_t most) {
  if (auto problem = check_count(field, tokens.size(), most)) {
    return problem;
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (auto problem = check_token(field, i, tokens[i])) {
      return problem;
    }
  }
  return std::nullopt;
}

Problem check_probability(const std::string& field, float value) {
  if (!(value >= 0.0F && value <= 1.0F)) {  // NaN fails
    return field + " is " + std::to_string(value) + "; a probability would be right";
  }
  return std::nullopt;
}

Problem check_finite(const std::string& field, float value) {
  if (!std::isfinite(value)) {
    return field + " is " + std::to_string(value) + "; a finite number would be right";
  }
  return std::nullopt;
}

Problem check_digest(const char* field, const std::vector<std::uint8_t>& value, std::size_t size) {
  if (value.size() != size) {
    return std::string(field) + " has " + std::to_string(value.size()) + " bytes; " + std::to_string(size) +
           " would be right";
  }
  return std::nullopt;
}

}  // namespace acespec::wire
