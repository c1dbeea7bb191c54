#include "acespec/engine/fake/fake_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "acespec/base/error.h"

namespace acespec {
namespace {

constexpr float kHidden = -1e4F;  ///< a bias at or below this hides a slot
constexpr std::uint64_t kSharedPart = 0x243F6A8885A308D3ULL;
constexpr std::uint64_t kOwnPart = 0x13198A2E03707344ULL;

/// SplitMix64's finaliser (Steele, Lea and Flood, 2014): every input bit reaches every output bit.
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

constexpr std::uint64_t extend(std::uint64_t context, TokenId token) noexcept {
  return mix(context ^ static_cast<std::uint32_t>(token.value()));
}

/// A draw from the exponential distribution of mean 1. The gap between the best two of many such draws is
/// again exponential with mean 1, so choices are clear at some positions and close at others, as with a real
/// model.
float exponential(std::uint64_t key, std::size_t token) noexcept {
  const std::uint64_t bits = mix(key ^ token) >> 40U;
  return -std::log((static_cast<float>(bits) + 0.5F) * 0x1p-24F);
}

void write_logits(const FakeOptions& options, std::uint64_t context, std::span<float> out) {
  const std::uint64_t shared = mix(context ^ kSharedPart);
  const std::uint64_t own = mix(context ^ kOwnPart);
  const float mine = options.disagreement;
  for (std::size_t token = 0; token < out.size(); ++token) {
    float value = (1.0F - mine) * exponential(shared, token);
    if (mine > 0.0F)
      value += mine * exponential(own, token);
    out[token] = options.sharpness * value;
  }
}

std::size_t granule_of(std::size_t slots) noexcept {
  std::size_t granule = 1;
  while (granule < 64 && slots % (granule * 2) == 0)
    granule *= 2;
  return granule;
}

EngineInfo describe(const FakeOptions& options) {
  options.validate();
  EngineInfo info;
  info.name = "fake";
  info.provider = "fake";
  info.vocabulary = options.vocabulary;
  info.logits_width = options.vocabulary;
  info.max_positions = options.max_positions;
  info.slots = options.slots;
  info.bytes_per_slot = sizeof(TokenId) + sizeof(Position);
  return info;
}

[[noreturn]] void refuse(std::size_t row, const std::string& what) {
  throw EngineError("fake engine: row " + std::to_string(row) + " " + what);
}

}  // namespace

void FakeOptions::validate() const {
  const auto check = [](bool good, const char* field, double value, const char* right) {
    if (good)
      return;
    throw UsageError("FakeOptions: " + std::string(field) + " is " + std::to_string(value) + ", must be " +
                     right);
  };
  check(std::isfinite(sharpness) && sharpness >= 0.0F, "sharpness", static_cast<double>(sharpness),
        "finite and >= 0");
  check(disagreement >= 0.0F && disagreement <= 1.0F, "disagreement", static_cast<double>(disagreement),
        "in [0, 1]");
  check(base_seconds >= 0.0 && base_seconds <= 60.0, "base_seconds", base_seconds, "in [0, 60]");
  check(row_seconds >= 0.0 && row_seconds <= 60.0, "row_seconds", row_seconds, "in [0, 60]");
}

std::vector<float> fake_logits(const FakeOptions& options, std::span<const TokenId> tokens) {
  if (tokens.empty())
    throw UsageError("fake_logits: tokens is empty, must hold at least one token");
  std::uint64_t context = options.seed;
  for (const TokenId token : tokens)
    context = extend(context, token);
  std::vector<float> logits(options.vocabulary);
  write_logits(options, context, logits);
  return logits;
}

FakeEngine::FakeEngine(const FakeOptions& options)
    : options_(options),
      granule_(granule_of(options.slots)),
      info_(describe(options)),
      check_(options.slots) {
  check_info(info_, options.max_rows, granule_);
  ring_.resize(options.slots);
  slot_at_.resize(options.max_positions);
  logits_.resize(options.max_rows * options.vocabulary);
}

std::uint64_t FakeEngine::read_context(const Forward& batch, std::size_t row) {
  const auto own = static_cast<std::size_t>(batch.positions[row].value());
  const std::span<const float> bias = batch.bias.subspan(row * batch.visible, batch.visible);
  const std::span<std::uint32_t> slot_at = std::span(slot_at_).first(own + 1);
  std::ranges::fill(slot_at, 0U);

  std::size_t seen = 0;
  for (std::size_t slot = 0; slot < bias.size(); ++slot) {
    if (bias[slot] <= kHidden)
      continue;
    const auto at = [slot] { return "slot " + std::to_string(slot); };
    if (bias[slot] != 0.0F) {
      refuse(row,
             "has a bias of " + std::to_string(bias[slot]) + " for " + at() + ", must be 0 or at most -1e4");
    }
    const std::int32_t position = ring_[slot].position.value();
    if (position < 0)
      refuse(row, "sees " + at() + ", which was never written");
    const auto index = static_cast<std::size_t>(position);
    if (index > own) {
      refuse(row, "at position " + std::to_string(own) + " sees " + at() +
                      ", which holds the later position " + std::to_string(position));
    }
    if (slot_at[index] != 0) {
      refuse(row, "sees position " + std::to_string(position) + " twice, in slot " +
                      std::to_string(slot_at[index] - 1) + " and in " + at());
    }
    slot_at[index] = static_cast<std::uint32_t>(slot) + 1;
    ++seen;
  }
  if (seen != own + 1) {
    const auto hole = std::ranges::find(slot_at, 0U) - slot_at.begin();
    refuse(row, "at position " + std::to_string(own) + " does not see position " + std::to_string(hole));
  }

  std::uint64_t context = options_.seed;
  for (const std::uint32_t slot : slot_at)
    context = extend(context, ring_[slot - 1].token);
  return context;
}

std::span<const float> FakeEngine::forward(const Forward& batch) {
  const auto start = std::chrono::steady_clock::now();
  check_(batch, info_, options_.max_rows, granule_);

  for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
    ring_[batch.slots[row].index()] = {batch.tokens[row], batch.positions[row]};
  }
  // Every row is judged, also those whose logits nobody asked for: their keys and values depend on the mask
  // as well.
  std::size_t next = 0;
  for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
    const std::uint64_t context = read_context(batch, row);
    if (next < batch.rows.size() && batch.rows[next] == row) {
      const std::span<float> logits =
          std::span(logits_).subspan(next * info_.logits_width, info_.logits_width);
      write_logits(options_, context, logits);
      ++next;
    }
  }

  const std::chrono::duration<double> delay(options_.base_seconds +
                                            options_.row_seconds * static_cast<double>(batch.tokens.size()));
  if (delay.count() > 0.0) {
    std::this_thread::sleep_until(start +
                                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(delay));
  }
  return std::span<const float>(logits_).first(batch.rows.size() * info_.logits_width);
}

void FakeEngine::clear() {
  ring_.assign(ring_.size(), Cell{});
}

}  // namespace acespec
