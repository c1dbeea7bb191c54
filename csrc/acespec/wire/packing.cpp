#include "acespec/wire/packing.h"

#include <string>

#include "acespec/base/error.h"

namespace acespec::wire {

std::uint8_t width_of(std::span<const TokenId> tokens) noexcept {
  std::uint8_t width = 2;
  for (const TokenId token : tokens) {
    if (token.value() >= 0x1000000) {
      return 4;
    }
    if (token.value() >= 0x10000) {
      width = 3;
    }
  }
  return width;
}

std::vector<std::uint8_t> pack(std::span<const TokenId> tokens, std::uint8_t width) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(tokens.size() * width);
  for (const TokenId token : tokens) {
    auto rest = static_cast<std::uint32_t>(token.value());
    for (std::uint8_t i = 0; i < width; ++i) {
      bytes.push_back(static_cast<std::uint8_t>(rest & 0xFFU));
      rest >>= 8U;
    }
  }
  return bytes;
}

std::vector<TokenId> unpack(std::span<const std::uint8_t> bytes, std::uint8_t width, const char* field) {
  if (width < 2 || width > 4) {
    throw PeerError(std::string(field) + " has token_width " + std::to_string(width) +
                    "; 2, 3 or 4 would be right");
  }
  if (bytes.size() % width != 0) {
    throw PeerError(std::string(field) + " has " + std::to_string(bytes.size()) +
                    " bytes; not a multiple of " + std::to_string(width));
  }
  std::vector<TokenId> tokens;
  tokens.reserve(bytes.size() / width);
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    std::uint32_t value = 0;
    for (std::size_t i = width; i-- > 0;) {
      value = value << 8U | bytes[at + i];
    }
    if (value > 0x7FFFFFFFU) {
      throw PeerError(std::string(field) + " holds the id " + std::to_string(value) + "; ids are below 2^31");
    }
    tokens.push_back(TokenId{static_cast<std::int32_t>(value)});
  }
  return tokens;
}

}  // namespace acespec::wire
