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

std::vector<std::uint8_t> copied(const flatbuffers::Vector<std::uint8_t>* value) {
  const std::span<const std::uint8_t> view = bytes(value);
  return {view.begin(), view.end()};
}

/// The pairs that two vectors of a table hold.
template <class Pair>
std::vector<Pair> pairs(const flatbuffers::Vector<std::uint8_t>* tokens,
                        const flatbuffers::Vector<float>* values, std::uint8_t width, const char* field) {
  const std::vector<TokenId> unpacked = unpack(bytes(tokens), width, field);
  const std::size_t count = values == nullptr ? 0 : values->size();
  if (unpacked.size() != count) {
    throw PeerError(std::string(field) + " has " + std::to_string(unpacked.size()) + " tokens for " +
                    std::to_string(count) + " numbers; one each would be right");
  }
  std::vector<Pair> result;
  result.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back({unpacked[i], values->Get(static_cast<flatbuffers::uoffset_t>(i))});
  }
  return result;
}

/// The verified table when the bytes carry its identifier, else nullptr.
template <class Table>
const Table* table_of(std::span<const std::uint8_t> data, const char* id) {
  if (!flatbuffers::BufferHasIdentifier(data.data(), id)) {
    return nullptr;
  }
  constexpr flatbuffers::uoffset_t kDepth = 2;  // the message and one table in it
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
  m.resume = copied(table.resume());
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
  m.keep_s = table.keep_s();
  return m;
}

Open read(const fb::Open& table) {
  const fb::OpenHead& head = head_of(table, "Open");
  Open m;
  m.request = head.request();
  m.prompt = unpack(bytes(table.prompt()), head.token_width(), "Open.prompt");
  m.rules = {head.temperature(), head.top_k(), head.top_p(), head.min_p(), head.seed()};
  m.rules.repetition_penalty = table.repetition_penalty();
  m.rules.presence_penalty = table.presence_penalty();
  m.rules.frequency_penalty = table.frequency_penalty();
  m.rules.logit_bias =
      pairs<LogitBias>(table.bias_tokens(), table.bias_values(), head.token_width(), "Open.logit_bias");
  m.rules.banned = unpack(bytes(table.banned()), head.token_width(), "Open.banned");
  m.rules.allowed = unpack(bytes(table.allowed()), head.token_width(), "Open.allowed");
  m.rules.min_tokens = table.min_tokens();
  m.rules.carried = table.carried();
  m.stop_ids = unpack(bytes(table.stop_ids()), head.token_width(), "Open.stop_ids");
  m.max_tokens = head.max_tokens();
  m.free_run = head.free_run();
  m.logprobs = table.logprobs();
  m.grammar_kind = static_cast<Grammar>(table.grammar_kind());
  m.grammar = text(table.grammar());
  m.mode = static_cast<Mode>(table.mode());
  m.prompt_zstd = copied(table.prompt_zstd());
  m.held = table.held();
  m.held_digest = copied(table.held_digest());
  return m;
}

Draft read(const fb::Draft& table) {
  const fb::DraftHead& head = head_of(table, "Draft");
  Draft m;
  m.request = head.request();
  m.round = head.round();
  m.base = head.base();
  m.first_node = head.first_node();
  m.parent_offsets = copied(table.parent_offsets());
  m.tokens = unpack(bytes(table.tokens()), head.token_width(), "Draft.tokens");
  m.free_run = head.free_run();
  if (table.q() != nullptr) {
    m.q.assign(table.q()->begin(), table.q()->end());
  }
  m.resampled = TokenId{table.resampled()};
  m.more_tail = table.more_tail();
  m.wants_hint = table.wants_hint();
  return m;
}

std::vector<TokenLogprob> logprobs_of(const fb::Verdict& table, std::uint8_t width) {
  const std::vector<Alternative> top =
      pairs<Alternative>(table.top_tokens(), table.top_values(), width, "Verdict.logprobs");
  const std::size_t count = table.logprobs() == nullptr ? 0 : table.logprobs()->size();
  if (count == 0 ? !top.empty() : top.size() % count != 0) {
    throw PeerError("Verdict.logprobs has " + std::to_string(top.size()) + " alternatives for " +
                    std::to_string(count) + " tokens; as many for each would be right");
  }
  std::vector<TokenLogprob> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t each = top.size() / count;
    const auto first = top.begin() + static_cast<std::ptrdiff_t>(i * each);
    result[i].logprob = table.logprobs()->Get(static_cast<flatbuffers::uoffset_t>(i));
    result[i].top.assign(first, first + static_cast<std::ptrdiff_t>(each));
  }
  return result;
}

SparseRow read(const fb::SparseRow& table, std::uint8_t width) {
  return {pairs<TokenProbability>(table.head_tokens(), table.head_values(), width, "Verdict.sparse.head"),
          table.tail_mass(),
          pairs<TokenProbability>(table.tail_tokens(), table.tail_values(), width, "Verdict.sparse.tail")};
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
  m.logprobs = logprobs_of(table, head.token_width());
  if (table.sparse() != nullptr) {
    m.sparse = read(*table.sparse(), head.token_width());
  }
  m.reused = table.reused();
  m.hint = unpack(bytes(table.hint()), head.token_width(), "Verdict.hint");
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
