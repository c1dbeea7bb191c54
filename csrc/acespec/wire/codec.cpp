#include "acespec/wire/codec.h"

#include <cstring>
#include <string>

#include "acespec/base/error.h"
#include "acespec/wire/flatbuffer.h"
#include "acespec/wire/invariants.h"

namespace acespec::wire {
namespace {

std::string too_large(std::size_t size, const Limits& limits) {
  return "a message has " + std::to_string(size) + " bytes; at most " + std::to_string(limits.max_bytes) +
         " are allowed";
}

}  // namespace

std::vector<std::uint8_t> encode(const Message& message, const Limits& limits) {
  if (const auto problem = problem_of(message, limits)) {
    throw UsageError(*problem);
  }
  flatbuffers::FlatBufferBuilder builder(512);
  build(builder, message);
  if (builder.GetSize() > limits.max_bytes) {
    throw UsageError(too_large(builder.GetSize(), limits));
  }
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

Message decode(std::span<const std::uint8_t> bytes, const Limits& limits) {
  if (bytes.size() > limits.max_bytes) {
    throw PeerError(too_large(bytes.size(), limits));
  }
  // The accessors read in place, so the bytes must lie as aligned as they were built.
  std::vector<std::uint64_t> aligned((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  if (!bytes.empty()) {
    std::memcpy(aligned.data(), bytes.data(), bytes.size());
  }
  Message message = parse({reinterpret_cast<const std::uint8_t*>(aligned.data()), bytes.size()});
  if (const auto problem = problem_of(message, limits)) {
    throw PeerError(*problem);
  }
  return message;
}

}  // namespace acespec::wire
