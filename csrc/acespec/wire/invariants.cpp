#include "acespec/wire/invariants.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>

#include "acespec/wire/fields.h"

namespace acespec::wire {
namespace {

constexpr std::size_t kPlainBytes = 3;  // of an id in Open.prompt_zstd

Problem check(const Hello& m, const Limits& limits) {
  if (!m.resume.empty()) {
    if (auto problem = check_digest("Hello.resume", m.resume, std::tuple_size_v<SessionKey>)) {
      return problem;
    }
  }
  return check_text("Hello.drafter", m.drafter, limits.max_text);
}

Problem check(const Welcome& m, const Limits& limits) {
  return check_text("Welcome.target", m.target, limits.max_text);
}

Problem check_prompt(const Open& m, const Limits& limits) {
  if (auto problem = check_tokens("Open.prompt", m.prompt, limits.max_prompt)) {
    return problem;
  }
  if (!m.prompt.empty() && !m.prompt_zstd.empty()) {
    return "Open.prompt and Open.prompt_zstd are both there; one of them would be right";
  }
  if (m.prompt_zstd.size() > kPlainBytes * limits.max_prompt) {
    return "Open.prompt_zstd has " + std::to_string(m.prompt_zstd.size()) + " bytes; at most " +
           std::to_string(kPlainBytes * limits.max_prompt) + " are allowed";
  }
  return check_digest("Open.held_digest", m.held_digest, m.held == 0 ? 0 : kDigestBytes);
}

Problem check(const Open& m, const Limits& limits) {
  if (auto problem = check_prompt(m, limits)) {
    return problem;
  }
  if (auto problem = check_tokens("Open.stop_ids", m.stop_ids, limits.max_stop_ids)) {
    return problem;
  }
  const std::vector<LogitBias>& biases = m.rules.logit_bias;
  if (auto problem = check_each("Open.logit_bias", biases.size(), limits.max_listed, [&](std::size_t i) {
        return check_token("Open.logit_bias", i, biases[i].token);
      })) {
    return problem;
  }
  if (auto problem = check_tokens("Open.banned", m.rules.banned, limits.max_listed)) {
    return problem;
  }
  if (auto problem = check_tokens("Open.allowed", m.rules.allowed, limits.max_listed)) {
    return problem;
  }
  if (m.logprobs < -1 || m.logprobs > kMaxAlternatives) {
    return "Open.logprobs is " + std::to_string(m.logprobs) + "; -1 (none) to " +
           std::to_string(kMaxAlternatives) + " would be right";
  }
  if (m.mode > Mode::kResidual) {
    return "Open.mode is " + std::to_string(static_cast<int>(m.mode)) + "; modes are 0 and 1";
  }
  if (m.grammar_kind > Grammar::kRegex) {
    return "Open.grammar_kind is " + std::to_string(static_cast<int>(m.grammar_kind)) +
           "; kinds run from 0 to 2";
  }
  if ((m.grammar_kind == Grammar::kNone) != m.grammar.empty()) {
    return "Open.grammar has " + std::to_string(m.grammar.size()) + " bytes for grammar_kind " +
           std::to_string(static_cast<int>(m.grammar_kind)) +
           "; a text exactly when the kind is not 0 (none)";
  }
  return check_text("Open.grammar", m.grammar, limits.max_grammar);
}

Problem check_residual(const Draft& m) {
  if (!m.q.empty() && m.q.size() != m.tokens.size()) {
    return "Draft.q has " + std::to_string(m.q.size()) + " entries for " + std::to_string(m.tokens.size()) +
           " tokens; one each, or none, would be right";
  }
  if (!m.q.empty() && !m.parent_offsets.empty()) {
    return "Draft.q goes with a chain; parent_offsets must be empty";
  }
  if (m.resampled < kNoToken) {
    return "Draft.resampled is " + std::to_string(m.resampled.value()) + "; a token, or -1 for none";
  }
  if (m.more_tail && (!m.tokens.empty() || m.resampled != kNoToken || m.free_run || m.wants_hint)) {
    return "Draft.more_tail asks for samples and nothing else; tokens, resampled, free_run and wants_hint "
           "must be unset";
  }
  return std::nullopt;
}

Problem check(const Draft& m, const Limits& limits) {
  if (auto problem = check_tokens("Draft.tokens", m.tokens, limits.max_nodes)) {
    return problem;
  }
  if (m.first_node == 0) {
    return "Draft.first_node is 0, which names the root; nodes are numbered from 1";
  }
  if (m.tokens.size() > std::numeric_limits<std::uint32_t>::max() - m.first_node) {
    return "Draft.first_node is " + std::to_string(m.first_node) + "; its nodes would pass 2^32 - 1";
  }
  if (!m.parent_offsets.empty() && m.parent_offsets.size() != m.tokens.size()) {
    return "Draft.parent_offsets has " + std::to_string(m.parent_offsets.size()) + " entries for " +
           std::to_string(m.tokens.size()) + " tokens; one each, or none for a chain, would be right";
  }
  for (std::size_t i = 0; i < m.parent_offsets.size(); ++i) {
    const std::uint32_t node = m.first_node + static_cast<std::uint32_t>(i);
    if (m.parent_offsets[i] >= node) {
      return "Draft.parent_offsets[" + std::to_string(i) + "] is " + std::to_string(m.parent_offsets[i]) +
             ", past the first node; for node " + std::to_string(node) + " at most " +
             std::to_string(node - 1) + " is possible (0 names the root)";
    }
  }
  return check_residual(m);
}

Problem check_logprobs(const Verdict& m, const Limits& limits) {
  const std::size_t most = limits.max_nodes + 1 + m.tokens.size();
  const char* field = "Verdict.logprobs";
  return check_each(field, m.logprobs.size(), most, [&](std::size_t i) -> Problem {
    const TokenLogprob& entry = m.logprobs[i];
    const std::string name = std::string(field) + "[" + std::to_string(i) + "]";
    if (entry.top.size() > static_cast<std::size_t>(kMaxAlternatives) ||
        entry.top.size() != m.logprobs.front().top.size()) {
      return name + " has " + std::to_string(entry.top.size()) + " alternatives; at most " +
             std::to_string(kMaxAlternatives) + ", and as many as the others, would be right";
    }
    for (std::size_t k = 0; k < entry.top.size(); ++k) {
      if (auto problem = check_token((name + ".top").c_str(), k, entry.top[k].token)) {
        return problem;
      }
      if (auto problem = check_finite(name + ".top[" + std::to_string(k) + "]", entry.top[k].logprob)) {
        return problem;
      }
    }
    return check_finite(name, entry.logprob);
  });
}

Problem check_weighted(const char* field, const std::vector<TokenProbability>& entries,
                       const Limits& limits) {
  return check_each(field, entries.size(), limits.max_sparse, [&](std::size_t i) {
    auto problem = check_token(field, i, entries[i].token);
    return problem ? problem
                   : check_probability(std::string(field) + "[" + std::to_string(i) + "]", entries[i].p);
  });
}

Problem check_sparse(const Verdict& m, const Limits& limits) {
  if (!m.sparse) {
    return std::nullopt;
  }
  if (!m.tokens.empty() || m.finish != Finish::kNone) {
    return "Verdict.sparse is for the edge to draw from; tokens and finish must be unset";
  }
  if (m.sparse->head.empty()) {
    return "Verdict.sparse.head is empty; at least one token would be right";
  }
  if (auto problem = check_weighted("Verdict.sparse.head", m.sparse->head, limits)) {
    return problem;
  }
  if (auto problem = check_weighted("Verdict.sparse.tail", m.sparse->tail, limits)) {
    return problem;
  }
  return check_probability("Verdict.sparse.tail_mass", m.sparse->tail_mass);
}

Problem check(const Verdict& m, const Limits& limits) {
  if (m.finish > Finish::kContext) {
    return "Verdict.finish is " + std::to_string(static_cast<int>(m.finish)) + "; reasons run from 0 to 4";
  }
  if (m.tokens.empty() && m.finish == Finish::kNone && !m.sparse) {
    return "Verdict.tokens is empty, which only a finish reason or a sparse row allows";
  }
  if (auto problem = check_tokens("Verdict.tokens", m.tokens, limits.max_nodes)) {
    return problem;
  }
  if (auto problem = check_logprobs(m, limits)) {
    return problem;
  }
  if (!m.hint.empty() && (m.sparse || m.finish != Finish::kNone)) {
    return "Verdict.hint is of what follows the tokens; with a sparse row or a finish reason it must be "
           "unset";
  }
  if (auto problem = check_tokens("Verdict.hint", m.hint, limits.max_nodes)) {
    return problem;
  }
  return check_sparse(m, limits);
}

Problem check(const Cancel& /*m*/, const Limits& /*limits*/) {
  return std::nullopt;
}

Problem check(const Close& m, const Limits& limits) {
  return check_text("Close.reason", m.reason, limits.max_text);
}

Problem check(const Fault& m, const Limits& limits) {
  if (m.code < FaultCode::kProtocol || m.code > FaultCode::kGone) {
    return "Fault.code is " + std::to_string(static_cast<int>(m.code)) + "; codes run from 1 to 8";
  }
  return check_text("Fault.message", m.message, limits.max_text);
}

}  // namespace

std::optional<std::string> problem_of(const Message& message, const Limits& limits) {
  return std::visit([&](const auto& m) { return check(m, limits); }, message);
}

}  // namespace acespec::wire
