// Token ids and pairs of a token and a number, as Python spells them: int, and (int, float).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "acespec/base/ids.h"

namespace acespec::bindings {

using Ids = std::vector<std::int32_t>;
using IdPairs = std::vector<std::pair<std::int32_t, float>>;

inline std::vector<TokenId> tokens_of(const Ids& ids) {
  return std::vector<TokenId>(ids.begin(), ids.end());
}

inline Ids ids_of(std::span<const TokenId> tokens) {
  Ids ids;
  ids.reserve(tokens.size());
  for (const TokenId token : tokens) {
    ids.push_back(token.value());
  }
  return ids;
}

inline std::optional<std::int32_t> id_of(std::optional<TokenId> token) {
  return token ? std::optional(token->value()) : std::nullopt;
}

/// `Pair` is an aggregate of a token and `Value`, its number.
template <class Pair>
std::vector<Pair> pairs_of(const IdPairs& values) {
  std::vector<Pair> pairs;
  pairs.reserve(values.size());
  for (const auto& [id, value] : values) {
    pairs.push_back({TokenId{id}, value});
  }
  return pairs;
}

template <class Pair>
IdPairs id_pairs_of(const std::vector<Pair>& pairs, float Pair::* value) {
  IdPairs result;
  result.reserve(pairs.size());
  for (const Pair& pair : pairs) {
    result.emplace_back(pair.token.value(), pair.*value);
  }
  return result;
}

}  // namespace acespec::bindings
