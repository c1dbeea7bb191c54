// Checks of one field of a message: each gives what is wrong, as a sentence naming field, value and what is
// right, or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "acespec/base/ids.h"

namespace acespec::wire {

using Problem = std::optional<std::string>;

/// UTF-8 of at most `most` bytes.
[[nodiscard]] Problem check_text(const char* field, std::string_view text, std::size_t most);

[[nodiscard]] Problem check_count(const char* field, std::size_t count, std::size_t most);

/// Entry `index` of a list is a token.
[[nodiscard]] Problem check_token(const char* field, std::size_t index, TokenId token);

[[nodiscard]] Problem check_tokens(const char* field, std::span<const TokenId> tokens, std::size_t most);

[[nodiscard]] Problem check_probability(const std::string& field, float value);

[[nodiscard]] Problem check_finite(const std::string& field, float value);

/// Exactly `size` bytes.
[[nodiscard]] Problem check_digest(const char* field, const std::vector<std::uint8_t>& value,
                                   std::size_t size);

/// The first problem that `test` finds in an entry, which it is called with the index of.
template <class Test>
[[nodiscard]] Problem check_each(const char* field, std::size_t count, std::size_t most, const Test& test) {
  if (auto problem = check_count(field, count, most)) {
    return problem;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (auto problem = test(i)) {
      return problem;
    }
  }
  return std::nullopt;
}

}  // namespace acespec::wire
