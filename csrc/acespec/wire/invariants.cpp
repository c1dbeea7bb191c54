#include "acespec/wire/invariants.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace acespec::wire {
namespace {

using Problem = std::optional<std::string>;

/// Length of the UTF-8 sequence at `at` when it is well formed (Unicode 15, table 3-7), else 0.
std::size_t utf8_sequence(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  std::size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    low = lead == 0xE0 ? 0xA0 : low;
    high = lead == 0xED ? 0x9F : high;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    low = lead == 0xF0 ? 0x90 : low;
    high = lead == 0xF4 ? 0x8F : high;
  }
  if (length == 0 || text.size() - at < length || byte(1) < low || byte(1) > high) {
    return 0;
  }
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) {
      return 0;
    }
  }
  return length;
}

Problem check_text(const char* field, std::string_view text, const Limits& limits) {
  if (text.size() > limits.max_text) {
    return std::string(field) + " has " + std::to_string(text.size()) + " bytes; at most " +
           std::to_string(limits.max_text) + " are allowed";
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_sequence(text, at);
    if (length == 0) {
      return std::string(field) + " is not UTF-8 at byte " + std::to_string(at);
    }
    at += length;
  }
  return std::nullopt;
}

Problem check_tokens(const char* field, std::span<const TokenId> tokens, std::size_t most) {
  if (tokens.size() > most) {
    return std::string(field) + " has " + std::to_string(tokens.size()) + " entries; at most " +
           std::to_string(most) + " are allowed";
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].value() < 0) {
      return std::string(field) + "[" + std::to_string(i) + "] is " + std::to_string(tokens[i].value()) +
             "; token ids are not negative";
    }
  }
  return std::nullopt;
}

Problem check(const Hello& m, const Limits& limits) {
  return check_text("Hello.drafter", m.drafter, limits);
}

Problem check(const Welcome& m, const Limits& limits) {
  return check_text("Welcome.target", m.target, limits);
}

Problem check(const Open& m, const Limits& limits) {
  if (auto problem = check_tokens("Open.prompt", m.prompt, limits.max_prompt)) {
    return problem;
  }
  return check_tokens("Open.stop_ids", m.stop_ids, limits.max_stop_ids);
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
  return std::nullopt;
}

Problem check(const Verdict& m, const Limits& limits) {
  if (m.finish > Finish::kContext) {
    return "Verdict.finish is " + std::to_string(static_cast<int>(m.finish)) + "; reasons run from 0 to 4";
  }
  if (m.tokens.empty() && m.finish == Finish::kNone) {
    return "Verdict.tokens is empty, which only a finish reason allows";
  }
  return check_tokens("Verdict.tokens", m.tokens, limits.max_nodes);
}

Problem check(const Cancel& /*m*/, const Limits& /*limits*/) {
  return std::nullopt;
}

Problem check(const Close& m, const Limits& limits) {
  return check_text("Close.reason", m.reason, limits);
}

Problem check(const Fault& m, const Limits& limits) {
  if (m.code < FaultCode::kProtocol || m.code > FaultCode::kInternal) {
    return "Fault.code is " + std::to_string(static_cast<int>(m.code)) + "; codes run from 1 to 7";
  }
  return check_text("Fault.message", m.message, limits);
}

}  // namespace

std::optional<std::string> problem_of(const Message& message, const Limits& limits) {
  return std::visit([&](const auto& m) { return check(m, limits); }, message);
}

}  // namespace acespec::wire
