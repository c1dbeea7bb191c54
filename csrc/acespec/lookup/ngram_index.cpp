#include "acespec/lookup/ngram_index.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "acespec/base/error.h"

namespace acespec {

NgramIndex::NgramIndex(std::size_t capacity) : capacity_(capacity) {
  if (capacity == 0 || capacity > std::numeric_limits<std::int32_t>::max()) {
    throw UsageError("NgramIndex: capacity is " + std::to_string(capacity) + ", must be in 1..2^31 - 1");
  }
  text_.reserve(capacity);
  for (Table& table : tables_) {
    table.resize(std::bit_ceil(2 * capacity));
  }
}

// Hashes of the last 1, 2, .. `longest` tokens; token(i) is the one i places before the end.
template <class FromEnd>
NgramIndex::Hashes NgramIndex::hashes(std::size_t longest, const FromEnd& token) {
  Hashes result{};
  for (std::size_t length = 1; length <= longest; ++length) {
    const std::uint64_t mixed =
        result[length - 1] + static_cast<std::uint32_t>(token(length - 1).value()) + 1;
    result[length] = std::rotl(mixed * 0x9E3779B97F4A7C15ULL, 29);
  }
  return result;
}

// The cell of a run, or the empty one where it belongs: there is always one.
template <class FromEnd>
std::size_t NgramIndex::locate(std::size_t length, std::uint64_t hash, const FromEnd& token) const {
  const Table& table = tables_[length - kShortest];
  const std::size_t mask = table.size() - 1;
  const auto same = [&](std::size_t next) {
    for (std::size_t back = 0; back < length; ++back) {
      if (text_[next - 1 - back] != token(back)) {
        return false;
      }
    }
    return true;
  };
  std::size_t cell = static_cast<std::size_t>((hash * 0xD6E8FEB86659FD93ULL) >> 32U) & mask;
  while (table[cell] != 0 && !same(table[cell])) {
    cell = (cell + 1) & mask;
  }
  return cell;
}

void NgramIndex::assign(std::span<const TokenId> text) {
  text_.clear();
  for (Table& table : tables_) {
    std::ranges::fill(table, 0U);
  }
  for (const TokenId token : text) {
    append(token);
  }
}

void NgramIndex::append(TokenId token) {
  if (text_.size() == capacity_) {
    throw UsageError("NgramIndex: the text has reached its capacity of " + std::to_string(capacity_) +
                     " tokens");
  }
  // The runs that end here have a token after them only now.
  const std::size_t next = text_.size();
  const auto from_end = [this, next](std::size_t back) { return text_[next - 1 - back]; };
  const std::size_t longest = std::min(kLongest, next);
  const Hashes hash = hashes(longest, from_end);
  for (std::size_t length = kShortest; length <= longest; ++length) {
    tables_[length - kShortest][locate(length, hash[length], from_end)] = static_cast<std::uint32_t>(next);
  }
  text_.push_back(token);
}

std::optional<NgramIndex::Match> NgramIndex::find(std::span<const TokenId> path) const {
  const auto from_end = [this, path](std::size_t back) {
    return back < path.size() ? path[path.size() - 1 - back] : text_[text_.size() - 1 - (back - path.size())];
  };
  const std::size_t longest = std::min(kLongest, text_.size() + path.size());
  const Hashes hash = hashes(longest, from_end);
  for (std::size_t length = longest; length >= kShortest; --length) {
    const std::uint32_t next = tables_[length - kShortest][locate(length, hash[length], from_end)];
    if (next != 0) {
      return Match{length, next};
    }
  }
  return std::nullopt;
}

}  // namespace acespec
