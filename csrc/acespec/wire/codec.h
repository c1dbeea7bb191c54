// Messages <-> bytes. Pure functions; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acespec/wire/messages.h"

namespace acespec::wire {

/// `max_bytes` is checked before a byte is read, and bounds what decoding may allocate (ten times that); the
/// others are checked on the message itself.
struct Limits {
  std::size_t max_bytes = 1U << 20U;  ///< of one message
  std::size_t max_nodes = 256;        ///< of one Draft; tokens of one Verdict
  std::size_t max_prompt = 131072;    ///< tokens of one Open
  std::size_t max_stop_ids = 64;
  std::size_t max_text = 4096;      ///< bytes of a name, reason or fault text
  std::size_t max_listed = 4096;    ///< tokens of one Open that are biased, banned, or allowed; of each
  std::size_t max_grammar = 65536;  ///< bytes of a grammar
  std::size_t max_sparse = 4096;    ///< tokens of a sparse row's head; samples of its tail
};

/// Throws UsageError when the message breaks a limit or its own invariants (a negative token, a parent
/// before node 1, ...).
[[nodiscard]] std::vector<std::uint8_t> encode(const Message& message, const Limits& limits = {});

/// Runs the FlatBuffers verifier, then the limits and invariants; throws PeerError naming what is wrong.
/// Whether a well-formed message makes sense now (rules in range, a prompt not empty, a known request) is the
/// session's question.
[[nodiscard]] Message decode(std::span<const std::uint8_t> bytes, const Limits& limits = {});

}  // namespace acespec::wire
