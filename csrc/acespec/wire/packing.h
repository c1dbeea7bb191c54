// Token ids as 2, 3 or 4 little-endian bytes each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acespec/base/ids.h"

namespace acespec::wire {

/// The smallest of the widths 2, 3 and 4 that holds every token; tokens are not negative.
[[nodiscard]] std::uint8_t width_of(std::span<const TokenId> tokens) noexcept;

/// Appends nothing else than `tokens.size() * width` bytes.
[[nodiscard]] std::vector<std::uint8_t> pack(std::span<const TokenId> tokens, std::uint8_t width);

/// Throws PeerError naming `field` when the width is none of 2, 3, 4, the length is not a multiple of it, or
/// an id does not fit a token id (31 bits).
[[nodiscard]] std::vector<TokenId> unpack(std::span<const std::uint8_t> bytes, std::uint8_t width,
                                          const char* field);

}  // namespace acespec::wire
