#include <algorithm>

#include "acespec/wire/flatbuffer.h"
#include "acespec/wire/packing.h"

namespace acespec::wire {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
using Bytes = flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>>;
using Text = flatbuffers::Offset<flatbuffers::String>;

/// An absent field is an empty one: it costs nothing.
Text text(Builder& builder, const std::string& value) {
  return value.empty() ? Text{} : builder.CreateString(value);
}

Bytes bytes(Builder& builder, const std::vector<std::uint8_t>& value) {
  return value.empty() ? Bytes{} : builder.CreateVector(value);
}

void put(Builder& b, const Hello& m) {
  const auto drafter = text(b, m.drafter);
  const auto chunks =
      m.chunks.empty() ? flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>>{} : b.CreateVector(m.chunks);
  const fb::HelloHead head(m.tokenizer, m.vocabulary, m.version);
  b.Finish(fb::CreateHello(b, &head, drafter, chunks), kHelloId);
}

void put(Builder& b, const Welcome& m) {
  const auto target = text(b, m.target);
  const fb::WelcomeHead head(m.session, m.vocabulary, m.max_context, m.max_nodes, m.version);
  b.Finish(fb::CreateWelcome(b, &head, target), kWelcomeId);
}

void put(Builder& b, const Open& m) {
  const std::uint8_t width = std::max(width_of(m.prompt), width_of(m.stop_ids));
  const auto prompt = bytes(b, pack(m.prompt, width));
  const auto stop_ids = bytes(b, pack(m.stop_ids, width));
  const fb::OpenHead head(m.rules.seed, m.rules.temperature, m.rules.top_p, m.rules.min_p, m.rules.top_k,
                          m.max_tokens, m.request, width, m.free_run);
  b.Finish(fb::CreateOpen(b, &head, prompt, stop_ids), kOpenId);
}

void put(Builder& b, const Draft& m) {
  const std::uint8_t width = width_of(m.tokens);
  const auto tokens = bytes(b, pack(m.tokens, width));
  const auto parent_offsets = bytes(b, m.parent_offsets);
  const fb::DraftHead head(m.base, m.first_node, m.request, m.round, width, m.free_run);
  b.Finish(fb::CreateDraft(b, &head, tokens, parent_offsets), kDraftId);
}

void put(Builder& b, const Verdict& m) {
  const std::uint8_t width = width_of(m.tokens);
  const auto tokens = bytes(b, pack(m.tokens, width));
  const fb::VerdictHead head(m.base, m.accepted_node, m.queue_us, m.verify_us, m.request, m.round,
                             static_cast<fb::Finish>(m.finish), width);
  b.Finish(fb::CreateVerdict(b, &head, tokens), kVerdictId);
}

void put(Builder& b, const Cancel& m) {
  const fb::CancelHead head(m.request);
  b.Finish(fb::CreateCancel(b, &head), kCancelId);
}

void put(Builder& b, const Close& m) {
  const auto reason = text(b, m.reason);
  b.Finish(fb::CreateClose(b, reason), kCloseId);
}

void put(Builder& b, const Fault& m) {
  const auto message = text(b, m.message);
  const fb::FaultHead head(m.retry_after_ms, m.request, static_cast<fb::FaultCode>(m.code));
  b.Finish(fb::CreateFault(b, &head, message), kFaultId);
}

}  // namespace

void build(flatbuffers::FlatBufferBuilder& builder, const Message& message) {
  std::visit([&](const auto& m) { put(builder, m); }, message);
}

}  // namespace acespec::wire
