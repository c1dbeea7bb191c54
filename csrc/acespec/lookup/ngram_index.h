// Where the end of a text has stood before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "acespec/base/ids.h"

namespace acespec {

/// A text that grows at its end, and for every run of kShortest to kLongest tokens in it the last place where
/// one more token followed. What a text repeats, it tends to go on repeating (prompt lookup decoding).
///
/// Exact: runs are compared token by token, hashes only say where to look. append() is O(kLongest) expected,
/// find() O(kLongest^2) at worst, plus the path; both whatever the length of the text. Memory is taken at
/// construction: at most 60 bytes a token, doubled where the size is just above a power of two. Not
/// thread-safe.
class NgramIndex {
 public:
  static constexpr std::size_t kShortest = 2;
  static constexpr std::size_t kLongest = 8;

  struct Match {
    std::size_t length;  ///< tokens that agree, kShortest to kLongest (kLongest: or more)
    std::size_t next;    ///< index in the text of the token that followed them
  };

  /// `capacity`: tokens of the longest text, at least 1. Throws UsageError when it is 0 or 2^31 or more.
  explicit NgramIndex(std::size_t capacity);

  /// Forgets the text and takes another; throws UsageError when it is longer than the capacity.
  void assign(std::span<const TokenId> text);
  /// Throws UsageError when the capacity is reached.
  void append(TokenId token);

  /// The longest run that ends the text and `path` behind it and stands in the text with a token after it; of
  /// several the last.
  [[nodiscard]] std::optional<Match> find(std::span<const TokenId> path) const;

  [[nodiscard]] std::span<const TokenId> text() const noexcept { return text_; }

 private:
  static constexpr std::size_t kLengths = kLongest - kShortest + 1;
  using Hashes = std::array<std::uint64_t, kLongest + 1>;  // by length
  using Table = std::vector<std::uint32_t>;                // cells: Match::next; 0: empty

  template <class FromEnd>
  static Hashes hashes(std::size_t longest, const FromEnd& token);
  template <class FromEnd>
  [[nodiscard]] std::size_t locate(std::size_t length, std::uint64_t hash, const FromEnd& token) const;

  std::size_t capacity_;
  std::vector<TokenId> text_;
  std::array<Table, kLengths> tables_;  // by length: open addressing, at most half full
};

}  // namespace acespec
