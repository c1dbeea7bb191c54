#include "acespec/sampling/kernels.h"

#include <algorithm>
#include <bit>
#include <limits>

// One binary for every x86-64: the widest version the machine can run is picked when the program is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define ACESPEC_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ACESPEC_WIDE
#endif

namespace acespec::kernels {

float inverse(double temperature) {
  return static_cast<float>(
      std::min(1.0 / temperature, static_cast<double>(std::numeric_limits<float>::max())));
}

namespace {

/// exp(x) for x <= 0: x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor series of e^r to r^6, whose
/// remainder is under 2e-7 of it.
[[gnu::always_inline]] inline float exp_nonpositive(float x) {
  constexpr float kLowest = -87.0F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float clipped = x < kLowest ? kLowest : x;
  const float shifted = clipped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (clipped - n * 0.693359375F) + n * 2.12194440e-4F;
  float series = 1.0F / 720.0F;
  series = series * r + 1.0F / 120.0F;
  series = series * r + 1.0F / 24.0F;
  series = series * r + 1.0F / 6.0F;
  series = series * r + 0.5F;
  series = series * r + 1.0F;
  series = series * r + 1.0F;
  const std::uint32_t exponent =
      (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound)) << 23U;
  const float value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(series) + exponent);
  return x < kLowest ? 0.0F : value;
}

}  // namespace

ACESPEC_WIDE float tile_max(const float* logits, std::size_t count, bool& bad) {
  constexpr std::size_t kLanes = 64;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  alignas(64) float lanes[kLanes];
  alignas(64) std::uint32_t wrong[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    lanes[lane] = -kInfinity;
    wrong[lane] = 0;
  }
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      lanes[lane] = x > lanes[lane] ? x : lanes[lane];
      wrong[lane] |= x < kInfinity ? 0U : 1U;
    }
  }
  for (; i < count; ++i) {
    const float x = logits[i];
    lanes[0] = x > lanes[0] ? x : lanes[0];
    wrong[0] |= x < kInfinity ? 0U : 1U;
  }
  float top = lanes[0];
  std::uint32_t any = wrong[0];
  for (std::size_t lane = 1; lane < kLanes; ++lane) {
    top = lanes[lane] > top ? lanes[lane] : top;
    any |= wrong[lane];
  }
  bad = bad || any != 0;
  return top;
}

ACESPEC_WIDE void tile_exp(const float* logits, std::size_t count, float top, float scale, float* terms) {
  for (std::size_t i = 0; i < count; ++i) {
    terms[i] = exp_nonpositive((logits[i] - top) * scale);
  }
}

ACESPEC_WIDE float tile_sum_exp(const float* logits, std::size_t count, float top, float scale) {
  alignas(64) float terms[kTile];
  for (std::size_t i = 0; i < count; ++i) {
    terms[i] = exp_nonpositive((logits[i] - top) * scale);
  }
  for (std::size_t i = count; i < kTile; ++i) {
    terms[i] = 0.0F;
  }
  for (std::size_t width = kTile / 2; width >= 16; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) {
      terms[i] += terms[i + width];
    }
  }
  float sum = 0.0F;
  for (std::size_t i = 0; i < 16; ++i) {
    sum += terms[i];
  }
  return sum;
}

ACESPEC_WIDE std::uint32_t tile_noise(std::uint64_t seed, Position position, std::uint32_t tile,
                                      std::uint32_t* words) {
  constexpr std::uint32_t kBlocks = kGumbelTile / 4;
  const auto place = static_cast<std::uint32_t>(position.value());
  const auto low = static_cast<std::uint32_t>(seed);
  const auto high = static_cast<std::uint32_t>(seed >> 32U);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    PhiloxWords x{place, tile * kBlocks + i, 0U, kGumbelStream};
    std::uint32_t key0 = low;
    std::uint32_t key1 = high;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      x = philox_round(x, key0, key1);
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
    words[i] = x.w0;
    words[kBlocks + i] = x.w1;
    words[2 * kBlocks + i] = x.w2;
    words[3 * kBlocks + i] = x.w3;
  }
  std::uint32_t top = 0;
  for (std::size_t i = 0; i < kTile; ++i) {
    top = words[i] > top ? words[i] : top;
  }
  return top;
}

ACESPEC_WIDE std::uint32_t tile_groups(const std::uint32_t* words, std::uint32_t least) {
  std::uint32_t groups = 0;
  for (std::size_t group = 0; group < kTile / kGroup; ++group) {
    std::uint32_t any = 0;
    for (std::size_t i = 0; i < kGroup; ++i) {
      any |= words[group * kGroup + i] >= least ? 1U : 0U;
    }
    groups |= any << group;
  }
  return groups;
}

}  // namespace acespec::kernels
