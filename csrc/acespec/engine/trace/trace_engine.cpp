#include "acespec/engine/trace/trace_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "acespec/base/error.h"

namespace acespec {
namespace {

constexpr std::size_t kGranule = 64;
constexpr std::size_t kNothing = std::numeric_limits<std::size_t>::max();
constexpr float kHidden = -1e4F;
constexpr float kNever = -std::numeric_limits<float>::infinity();

/// A path with one token more. The finaliser of splitmix64: every bit of either sways every bit of the
/// result.
std::uint64_t extended(std::uint64_t path, TokenId token) noexcept {
  std::uint64_t value = path ^ static_cast<std::uint64_t>(token.value());
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

EngineInfo describe(const TraceOptions& options, std::size_t cell_bytes) {
  EngineInfo info;
  info.name = "trace";
  info.provider = "trace";
  info.vocabulary = options.vocabulary;
  info.logits_width = options.vocabulary;
  info.max_positions = options.max_positions;
  info.slots = options.slots;
  info.bytes_per_slot = cell_bytes;
  return info;
}

[[noreturn]] void refuse(const std::string& what) {
  throw UsageError("trace record: " + what);
}

}  // namespace

TraceEngine::TraceEngine(const TraceOptions& options)
    : max_rows_(options.max_rows), info_(describe(options, sizeof(Cell))), check_(options.slots) {
  check_info(info_, max_rows_, kGranule);
  ring_.resize(options.slots);
  order_.reserve(max_rows_);
  logits_.assign(max_rows_ * options.vocabulary, kNever);
  written_.assign(max_rows_, kNothing);
}

std::size_t TraceEngine::visible_granule() const noexcept {
  return kGranule;
}

void TraceEngine::check(const TraceRecord& record) const {
  const auto require_ids = [&](std::string_view field, const std::vector<TokenId>& ids) {
    const auto bad = std::ranges::find_if(
        ids, [&](TokenId id) { return id.value() < 0 || id.index() >= info_.vocabulary; });
    if (bad != ids.end()) {
      refuse(std::string(field) + "[" + std::to_string(bad - ids.begin()) + "] is " +
             std::to_string(bad->value()) + ", must be in 0.." + std::to_string(info_.vocabulary - 1));
    }
  };
  if (record.prompt.empty() || record.text.empty())
    refuse("prompt and text are " + std::to_string(record.prompt.size()) + " and " +
           std::to_string(record.text.size()) + " tokens, must be at least one each");
  if (record.prompt.size() + record.text.size() > info_.max_positions) {
    refuse("prompt and text are " + std::to_string(record.prompt.size() + record.text.size()) +
           " tokens, must be at most " + std::to_string(info_.max_positions));
  }
  const std::size_t entries = record.text.size() * record.width;
  if (record.width == 0 || record.top.size() != entries || record.scores.size() != entries) {
    refuse("top and scores have " + std::to_string(record.top.size()) + " and " +
           std::to_string(record.scores.size()) + " entries, must have " +
           std::to_string(record.text.size()) + " rows of " +
           std::to_string(std::max<std::size_t>(record.width, 1)));
  }
  require_ids("prompt", record.prompt);
  require_ids("text", record.text);
  require_ids("top", record.top);
  const auto bad = std::ranges::find_if(record.scores, [](float score) { return !std::isfinite(score); });
  if (bad != record.scores.end()) {
    refuse("scores[" + std::to_string(bad - record.scores.begin()) + "] is " + std::to_string(*bad) +
           ", must be finite");
  }
}

void TraceEngine::set_record(TraceRecord record) {
  check(record);
  for (std::size_t out = 0; out < max_rows_; ++out)
    erase(out);
  record_ = std::move(record);
  whole_.clear();
  std::uint64_t path = 0;
  for (const auto* part : {&record_.prompt, &record_.text}) {
    for (const TokenId token : *part)
      whole_.push_back(path = extended(path, token));
  }
}

void TraceEngine::clear() {
  std::ranges::fill(ring_, Cell{});
}

void TraceEngine::erase(std::size_t out) noexcept {
  if (written_[out] == kNothing)
    return;
  const std::span<float> logits = std::span(logits_).subspan(out * info_.logits_width, info_.logits_width);
  for (const TokenId id : std::span(record_.top).subspan(written_[out] * record_.width, record_.width))
    logits[id.index()] = kNever;
  written_[out] = kNothing;
}

// Finds what `row` continues and writes its cell. The rows before it in position have theirs.
void TraceEngine::walk(const Forward& batch, std::size_t row) {
  const std::int32_t own = batch.positions[row].value();
  std::uint64_t before = 0;
  if (own > 0) {
    const std::span<const float> bias = batch.bias.subspan(row * batch.visible, batch.visible);
    std::size_t slot = 0;
    while (slot < bias.size() && (bias[slot] <= kHidden || ring_[slot].position.value() != own - 1))
      ++slot;
    if (slot == bias.size()) {
      throw EngineError("trace engine: row " + std::to_string(row) + " at position " + std::to_string(own) +
                        " sees no slot of position " + std::to_string(own - 1));
    }
    before = ring_[slot].path;
  }
  ring_[batch.slots[row].index()] = {batch.positions[row], extended(before, batch.tokens[row])};
}

// The recorded position whose scores the row of `cell` gets: the token after position p of the whole is
// number p + 1 - prompt of the text.
std::size_t TraceEngine::recorded(const Cell& cell) const noexcept {
  const auto at = static_cast<std::size_t>(cell.position.value());
  const std::size_t next = at + 1;
  const std::size_t prompt = record_.prompt.size();
  if (next >= prompt && next < whole_.size() && whole_[at] == cell.path)
    return next - prompt;
  return static_cast<std::size_t>(cell.path % record_.text.size());
}

std::span<const float> TraceEngine::forward(const Forward& batch) {
  check_(batch, info_, max_rows_, kGranule);
  if (record_.text.empty())
    throw UsageError("trace engine: forward() before set_record()");

  order_.resize(batch.tokens.size());
  std::iota(order_.begin(), order_.end(), 0U);
  std::ranges::sort(order_, [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(batch.positions[a], a) < std::pair(batch.positions[b], b);
  });
  // What a slot held before must not be taken for the token before its new one, which sees its own slot.
  for (const KvSlot slot : batch.slots)
    ring_[slot.index()] = Cell{};
  for (const std::uint32_t row : order_)
    walk(batch, row);

  for (std::size_t out = 0; out < batch.rows.size(); ++out) {
    erase(out);
    const std::size_t at = recorded(ring_[batch.slots[batch.rows[out]].index()]);
    const std::span<float> logits = std::span(logits_).subspan(out * info_.logits_width, info_.logits_width);
    for (std::size_t rank = 0; rank < record_.width; ++rank) {
      const std::size_t entry = at * record_.width + rank;
      logits[record_.top[entry].index()] = record_.scores[entry];
    }
    written_[out] = at;
  }
  return std::span<const float>(logits_).first(batch.rows.size() * info_.logits_width);
}

}  // namespace acespec
