#include <algorithm>
#include <initializer_list>

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

template <class T>
flatbuffers::Offset<flatbuffers::Vector<T>> numbers(Builder& builder, const std::vector<T>& value) {
  return value.empty() ? flatbuffers::Offset<flatbuffers::Vector<T>>{} : builder.CreateVector(value);
}

/// A list of (token, number) pairs as the two lists that go on the wire.
struct Columns {
  std::vector<TokenId> tokens;
  std::vector<float> values;

  template <class Pair>
  void add(const std::vector<Pair>& pairs, float Pair::* value) {
    for (const Pair& pair : pairs) {
      tokens.push_back(pair.token);
      values.push_back(pair.*value);
    }
  }
};

std::uint8_t widest(std::initializer_list<std::uint8_t> widths) {
  return std::max(widths);
}

void put(Builder& b, const Hello& m) {
  const auto drafter = text(b, m.drafter);
  const auto chunks = numbers(b, m.chunks);
  const fb::HelloHead head(m.tokenizer, m.vocabulary, m.version);
  b.Finish(fb::CreateHello(b, &head, drafter, chunks), kHelloId);
}

void put(Builder& b, const Welcome& m) {
  const auto target = text(b, m.target);
  const fb::WelcomeHead head(m.session, m.vocabulary, m.max_context, m.max_nodes, m.version);
  b.Finish(fb::CreateWelcome(b, &head, target), kWelcomeId);
}

void put(Builder& b, const Open& m) {
  Columns biases;
  biases.add(m.rules.logit_bias, &LogitBias::bias);
  const std::uint8_t width = widest({width_of(m.prompt), width_of(m.stop_ids), width_of(biases.tokens),
                                     width_of(m.rules.banned), width_of(m.rules.allowed)});
  const auto prompt = bytes(b, pack(m.prompt, width));
  const auto stop_ids = bytes(b, pack(m.stop_ids, width));
  const auto bias_tokens = bytes(b, pack(biases.tokens, width));
  const auto bias_values = numbers(b, biases.values);
  const auto banned = bytes(b, pack(m.rules.banned, width));
  const auto allowed = bytes(b, pack(m.rules.allowed, width));
  const auto grammar = text(b, m.grammar);
  const fb::OpenHead head(m.rules.seed, m.rules.temperature, m.rules.top_p, m.rules.min_p, m.rules.top_k,
                          m.max_tokens, m.request, width, m.free_run);
  b.Finish(fb::CreateOpen(b, &head, prompt, stop_ids, m.rules.repetition_penalty, m.rules.presence_penalty,
                          m.rules.frequency_penalty, m.rules.min_tokens, bias_tokens, bias_values, banned,
                          allowed, m.logprobs, static_cast<fb::Grammar>(m.grammar_kind), grammar,
                          static_cast<fb::Mode>(m.mode), m.rules.carried),
           kOpenId);
}

void put(Builder& b, const Draft& m) {
  const std::uint8_t width = width_of(m.tokens);
  const auto tokens = bytes(b, pack(m.tokens, width));
  const auto parent_offsets = bytes(b, m.parent_offsets);
  const auto q = numbers(b, m.q);
  const fb::DraftHead head(m.base, m.first_node, m.request, m.round, width, m.free_run);
  b.Finish(
      fb::CreateDraft(b, &head, tokens, parent_offsets, q, m.resampled.value(), m.more_tail, m.wants_hint),
      kDraftId);
}

void put(Builder& b, const Verdict& m) {
  std::vector<float> of_tokens;
  Columns top;
  for (const TokenLogprob& entry : m.logprobs) {
    of_tokens.push_back(entry.logprob);
    top.add(entry.top, &Alternative::logprob);
  }
  Columns head_columns;
  Columns tail_columns;
  if (m.sparse) {
    head_columns.add(m.sparse->head, &TokenProbability::p);
    tail_columns.add(m.sparse->tail, &TokenProbability::p);
  }
  const std::uint8_t width = widest({width_of(m.tokens), width_of(top.tokens), width_of(head_columns.tokens),
                                     width_of(tail_columns.tokens), width_of(m.hint)});
  const auto tokens = bytes(b, pack(m.tokens, width));
  const auto logprobs = numbers(b, of_tokens);
  const auto top_tokens = bytes(b, pack(top.tokens, width));
  const auto top_values = numbers(b, top.values);
  flatbuffers::Offset<fb::SparseRow> sparse;
  if (m.sparse) {
    const auto head_tokens = bytes(b, pack(head_columns.tokens, width));
    const auto head_values = numbers(b, head_columns.values);
    const auto tail_tokens = bytes(b, pack(tail_columns.tokens, width));
    const auto tail_values = numbers(b, tail_columns.values);
    sparse = fb::CreateSparseRow(b, head_tokens, head_values, tail_tokens, tail_values, m.sparse->tail_mass);
  }
  const auto hint = bytes(b, pack(m.hint, width));
  const fb::VerdictHead head(m.base, m.accepted_node, m.queue_us, m.verify_us, m.request, m.round,
                             static_cast<fb::Finish>(m.finish), width);
  b.Finish(fb::CreateVerdict(b, &head, tokens, logprobs, top_tokens, top_values, sparse, hint), kVerdictId);
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
