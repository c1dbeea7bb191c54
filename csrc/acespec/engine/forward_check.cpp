#include "acespec/engine/forward_check.h"

#include <string>
#include <string_view>

#include "acespec/base/error.h"

namespace acespec {
namespace {

[[noreturn]] void refuse(std::string_view field, const std::string& value, const std::string& right) {
  throw UsageError("forward: " + std::string(field) + " is " + value + ", must be " + right);
}

void check_entries(std::string_view field, std::size_t size, std::size_t rows) {
  if (size != rows) {
    refuse(std::string(field) + " count", std::to_string(size),
           std::to_string(rows) + " as there are tokens");
  }
}

void check_below(std::string_view field, std::size_t row, std::int64_t value, std::size_t end) {
  if (value < 0 || static_cast<std::uint64_t>(value) >= end) {
    refuse(std::string(field) + "[" + std::to_string(row) + "]", std::to_string(value),
           "in 0.." + std::to_string(end - 1));
  }
}

void check_rows(std::span<const std::uint32_t> rows, std::size_t count) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check_below("rows", i, rows[i], count);
    if (i > 0 && rows[i] <= rows[i - 1]) {
      refuse("rows[" + std::to_string(i) + "]", std::to_string(rows[i]),
             "above rows[" + std::to_string(i - 1) + "] = " + std::to_string(rows[i - 1]));
    }
  }
}

}  // namespace

void ForwardCheck::operator()(const Forward& batch, const EngineInfo& info, std::size_t max_rows,
                              std::size_t granule) {
  const std::size_t count = batch.tokens.size();
  if (count == 0 || count > max_rows) {
    refuse("tokens count", std::to_string(count), "in 1.." + std::to_string(max_rows));
  }
  check_entries("positions", batch.positions.size(), count);
  check_entries("slots", batch.slots.size(), count);
  if (batch.visible == 0 || batch.visible > info.slots || batch.visible % granule != 0) {
    refuse("visible", std::to_string(batch.visible),
           "a multiple of " + std::to_string(granule) + " up to " + std::to_string(info.slots));
  }
  if (batch.bias.size() != count * batch.visible) {
    refuse("bias size", std::to_string(batch.bias.size()),
           std::to_string(count) + " x " + std::to_string(batch.visible));
  }
  check_rows(batch.rows, count);

  ++forward_;
  for (std::size_t row = 0; row < count; ++row) {
    check_below("tokens", row, batch.tokens[row].value(), info.vocabulary);
    check_below("positions", row, batch.positions[row].value(), info.max_positions);
    check_below("slots", row, batch.slots[row].value(), batch.visible);
    std::uint64_t& seen = last_seen_[batch.slots[row].index()];
    if (seen == forward_) {
      refuse("slots[" + std::to_string(row) + "]", std::to_string(batch.slots[row].value()),
             "distinct from the slots before it");
    }
    seen = forward_;
  }
}

void check_info(const EngineInfo& info, std::size_t max_rows, std::size_t granule) {
  const auto refuse_size = [&](std::string_view field, std::size_t value, const std::string& right) {
    throw UsageError("engine " + info.name + ": " + std::string(field) + " is " + std::to_string(value) +
                     ", must be " + right);
  };
  if (info.vocabulary == 0)
    refuse_size("vocabulary", 0, "positive");
  if (info.logits_width < info.vocabulary) {
    refuse_size("vocabulary", info.vocabulary,
                "at most the model's " + std::to_string(info.logits_width) + " logits");
  }
  if (info.slots == 0 || info.slots % granule != 0) {
    refuse_size("slots", info.slots, "a positive multiple of " + std::to_string(granule));
  }
  if (info.max_positions == 0)
    refuse_size("max_positions", 0, "positive");
  if (max_rows == 0 || max_rows > info.slots) {
    refuse_size("max_rows", max_rows, "in 1.." + std::to_string(info.slots));
  }
}

}  // namespace acespec
