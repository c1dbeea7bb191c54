// Private to this room: the generated code, and how a message's table is named on the wire.
#pragma once

#include "acespec/wire/codec.h"
#include "acespec_generated.h"

namespace acespec::wire {

inline constexpr const char* kHelloId = "ACHE";
inline constexpr const char* kWelcomeId = "ACWE";
inline constexpr const char* kOpenId = "ACOP";
inline constexpr const char* kDraftId = "ACDR";
inline constexpr const char* kVerdictId = "ACVE";
inline constexpr const char* kCancelId = "ACCA";
inline constexpr const char* kCloseId = "ACCL";
inline constexpr const char* kFaultId = "ACFA";

/// Writes the message, which keeps its invariants, into an empty builder.
void build(flatbuffers::FlatBufferBuilder& builder, const Message& message);

/// Reads a message out of bytes aligned to 8. Throws PeerError when no table of ours is in them.
[[nodiscard]] Message parse(std::span<const std::uint8_t> bytes);

}  // namespace acespec::wire
