#include <algorithm>
#include <string>

#include "acespec/base/error.h"
#include "acespec/wire/flatbuffer.h"
#include "acespec/wire/packing.h"

namespace acespec::wire {
namespace {

std::string text(const flatbuffers::String* value) {
  return value == nullptr ? std::string() : value->str();
}

std::span<const std::uint8_t> bytes(const flatbuffers::Vector<std::uint8_t>* value) {
  return value == nullptr ? std::span<const std::uint8_t>() : std::span(value->data(), value->size());
}

/// The verified table when the bytes carry its identifier, else nullptr.
template <class Table>
const Table* table_of(std::span<const std::uint8_t> data, const char* id) {
  if (!flatbuffers::BufferHasIdentifier(data.data(), id)) {
    return nullptr;
  }
  constexpr flatbuffers::uoffset_t kDepth = 2;  // one table, no nesting
  flatbuffers::Verifier verifier(data.data(), data.size(), kDepth, kDepth);
  if (!verifier.VerifyBuffer<Table>(id)) {
    throw PeerError(std::string("a ") + id +
                    " message is malformed: it does not pass the FlatBuffers verifier");
  }
  return flatbuffers::GetRoot<Table>(data.data());
}

template <class Table>
const auto& head_of(const Table& table, const char* name) {
  if (table.head() == nullptr) {
    throw PeerError(std::string(name) + " lacks its head");
  }
  return *table.head();
}

Hello read(const fb::Hello& table) {
  const fb::HelloHead& head = head_of(table, "Hello");
  Hello m;
  m.version = head.version();
  std::copy(head.tokenizer()->begin(), head.tokenizer()->end(), m.tokenizer.begin());
  m.vocabulary = head.vocabulary();
  m.drafter = text(table.drafter());
  if (table.chunks() != nullptr) {
    m.chunks.assign(table.chunks()->begin(), table.chunks()->end());
  }
  return m;
}

Welcome read(const fb::Welcome& table) {
  const fb::WelcomeHead& head = head_of(table, "Welcome");
  Welcome m;
  m.version = head.version();
  m.vocabulary = head.vocabulary();
  m.max_context = head.max_context();
  m.max_nodes = head.max_nodes();
  std::copy(head.session()->begin(), head.session()->end(), m.session.begin());
  m.target = text(table.target());
  return m;
}

Open read(const fb::Open& table) {
  const fb::OpenHead& head = head_of(table, "Open");
  Open m;
  m.request = head.request();
  m.prompt = unpack(bytes(table.prompt()), head.token_width(), "Open.prompt");
  m.rules = {head.temperature(), head.top_k(), head.top_p(), head.min_p(), head.seed()};
  m.stop_ids = unpack(bytes(table.stop_ids()), head.token_width(), "Open.stop_ids");
  m.max_tokens = head.max_tokens();
  m.free_run = head.free_run();
  return m;
}

Draft read(const fb::Draft& table) {
  const fb::DraftHead& head = head_of(table, "Draft");
  Draft m;
  m.request = head.request();
  m.round = head.round();
  m.base = head.base();
  m.first_node = head.first_node();
  const std::span<const std::uint8_t> offsets = bytes(table.parent_offsets());
  m.parent_offsets.assign(offsets.begin(), offsets.end());
  m.tokens = unpack(bytes(table.tokens()), head.token_width(), "Draft.tokens");
  m.free_run = head.free_run();
  return m;
}

Verdict read(const fb::Verdict& table) {
  const fb::VerdictHead& head = head_of(table, "Verdict");
  Verdict m;
  m.request = head.request();
  m.round = head.round();
  m.base = head.base();
  m.accepted_node = head.accepted_node();
  m.tokens = unpack(bytes(table.tokens()), head.token_width(), "Verdict.tokens");
  m.finish = static_cast<Finish>(head.finish());
  m.queue_us = head.queue_us();
  m.verify_us = head.verify_us();
  return m;
}

Cancel read(const fb::Cancel& table) {
  return {head_of(table, "Cancel").request()};
}

Close read(const fb::Close& table) {
  return {text(table.reason())};
}

Fault read(const fb::Fault& table) {
  const fb::FaultHead& head = head_of(table, "Fault");
  return {head.request(), static_cast<FaultCode>(head.code()), text(table.message()), head.retry_after_ms()};
}

}  // namespace

Message parse(std::span<const std::uint8_t> data) {
  constexpr std::size_t kSmallest = sizeof(flatbuffers::uoffset_t) + flatbuffers::kFileIdentifierLength;
  if (data.size() < kSmallest) {
    throw PeerError("a message has " + std::to_string(data.size()) + " bytes; the shortest one has more");
  }
  if (const auto* m = table_of<fb::Draft>(data, kDraftId)) {
    return read(*m);
  }
  if (const auto* m = table_of<fb::Verdict>(data, kVerdictId)) {
    return read(*m);
  }
  if (const auto* m = table_of<fb::Open>(data, kOpenId)) {
    return read(*m);
  }
  if (const auto* m = table_of<fb::Hello>(data, kHelloId)) {
    return read(*m);
  }
  if (const auto* m = table_of<fb::Welcome>(data, kWelcomeId)) {
    return read(*m);
  }
  if (const auto* m = table_of<fb::Cancel>(data, kCancelId)) {
    return read(*m);
  }
  if (const auto* m = table_of<fb::Close>(data, kCloseId)) {
    return read(*m);
  }
  if (const auto* m = table_of<fb::Fault>(data, kFaultId)) {
    return read(*m);
  }
  throw PeerError("a message has an unknown identifier in bytes 4 to 7; is the peer speaking this protocol?");
}

}  // namespace acespec::wire
