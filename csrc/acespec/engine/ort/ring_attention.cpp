#include "acespec/engine/ort/ring_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "acespec/sampling/kernels.h"

// As in sampling/kernels.cpp, but free to round as the machine does.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define ACESPEC_WIDE __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define ACESPEC_WIDE
#endif

namespace acespec::ort {
namespace {

constexpr std::size_t kLanes = RingAttention::kLanes;
constexpr std::size_t kTile = 64;  // slots at a time: their scores and values stay in the first cache
constexpr std::size_t kWidth = 16;
constexpr std::size_t kAhead = 16;  // keys
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Vectors of the compiler's own, which it splits where the machine's are shorter.
using Floats = float __attribute__((vector_size(kWidth * sizeof(float))));

struct Lane {
  const float* query;
  const float* bias;
  float* out;
};

[[gnu::always_inline]] inline void load(Floats& x, const float* from) {
  std::memcpy(&x, from, sizeof x);
}

#if defined(__x86_64__) && __has_builtin(__builtin_shufflevector)
/// The sums of four vectors, written `stride` apart. Vectors are folded while they are joined, so that four
/// take no more steps than two would apart: eight elements belong to each of two, then four to each of four,
/// then one counts.
[[gnu::always_inline]] inline void sum_each(const Floats (&x)[kLanes], float* sums, std::size_t stride) {
  const auto halves = [](const Floats& a, const Floats& b, Floats& out) __attribute__((always_inline)) {
    out = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
          __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  };
  Floats a;
  Floats b;
  halves(x[0], x[1], a);
  halves(x[2], x[3], b);
  Floats all = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  all += __builtin_shufflevector(all, all, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  all += __builtin_shufflevector(all, all, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    sums[lane * stride] = all[lane * 4];
}
#else
/// The same for processors with short vectors: what is folded above within one is whole vectors there.
[[gnu::always_inline]] inline void sum_each(const Floats (&x)[kLanes], float* sums, std::size_t stride) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    float parts[kWidth];
    std::memcpy(parts, &x[lane], sizeof parts);
    for (std::size_t width = kWidth / 2; width > 0; width /= 2) {
      for (std::size_t i = 0; i < width; ++i)
        parts[i] += parts[i + width];
    }
    sums[lane * stride] = parts[0];
  }
}
#endif

/// Of one head's rows the processor does not guess the next by itself.
[[gnu::always_inline]] inline void prefetch(const float* row, std::size_t size) {
  for (std::size_t d = 0; d < size; d += kWidth)
    __builtin_prefetch(row + d);
}

/// scores[lane][i] = query of the lane times key i. Asks for the keys after them, and for the values that
/// mix() reads next.
[[gnu::always_inline]] inline void multiply(const Lane (&lanes)[kLanes], const float* keys,
                                            const float* values, std::size_t stride, std::size_t head_dim,
                                            std::size_t count, float (&scores)[kLanes][kTile]) {
  const std::size_t whole = head_dim / kWidth * kWidth;
  for (std::size_t i = 0; i < count; ++i) {
    const float* const key = keys + i * stride;
    prefetch(key + kAhead * stride, head_dim);
    prefetch(values + i * stride, head_dim);
    Floats sums[kLanes] = {};
    for (std::size_t d = 0; d < whole; d += kWidth) {
      Floats k;
      load(k, key + d);
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        Floats q;
        load(q, lanes[lane].query + d);
        sums[lane] += q * k;
      }
    }
    sum_each(sums, &scores[0][i], kTile);
    for (std::size_t d = whole; d < head_dim; ++d) {
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        scores[lane][i] += lanes[lane].query[d] * key[d];
    }
  }
}

/// mixed[lane] += the values, each times its share.
[[gnu::always_inline]] inline void mix(const float* values, std::size_t stride, std::size_t head_dim,
                                       std::size_t count, const float (&shares)[kLanes][kTile],
                                       float (&mixed)[kLanes][RingAttention::kMostHeadDim]) {
  const std::size_t whole = head_dim / kWidth * kWidth;
  for (std::size_t d = 0; d < whole; d += kWidth) {
    Floats sums[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      load(sums[lane], mixed[lane] + d);
    for (std::size_t i = 0; i < count; ++i) {
      Floats v;
      load(v, values + i * stride + d);
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        sums[lane] += shares[lane][i] * v;
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      std::memcpy(mixed[lane] + d, &sums[lane], sizeof sums[lane]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t d = whole; d < head_dim; ++d) {
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        mixed[lane][d] += shares[lane][i] * values[i * stride + d];
    }
  }
}

bool shows(const Lane (&lanes)[kLanes], std::size_t first, std::size_t count) {
  return std::ranges::any_of(lanes, [&](const Lane& lane) {
    return std::any_of(lane.bias + first, lane.bias + first + count, [](float x) { return x > kHidden; });
  });
}

/// The attention of four lanes, one tile of slots after the other. Terms are relative to the largest score so
/// far; when a larger one comes, what was summed is scaled down to it.
ACESPEC_WIDE void attend_lanes(const RingAttention& a, const Lane (&lanes)[kLanes], const float* keys,
                               const float* values) {
  alignas(64) float scores[kLanes][kTile];
  alignas(64) float mixed[kLanes][RingAttention::kMostHeadDim] = {};
  float tops[kLanes] = {kHidden, kHidden, kHidden, kHidden};
  float sums[kLanes] = {};
  const std::size_t stride = a.kv_heads * a.head_dim;
  for (std::size_t first = 0; first < a.visible; first += kTile) {
    const std::size_t count = std::min(kTile, a.visible - first);
    if (!shows(lanes, first, count))
      continue;
    multiply(lanes, keys + first * stride, values + first * stride, stride, a.head_dim, count, scores);
    Floats terms[kLanes] = {};
    float shrinks[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      float* const row = scores[lane];
      const float* const bias = lanes[lane].bias + first;
      if (a.cap > 0) {
        for (std::size_t i = 0; i < count; ++i)
          row[i] = a.cap * std::tanh(row[i] * a.scale / a.cap) + bias[i];
      } else {
        for (std::size_t i = 0; i < count; ++i)
          row[i] = row[i] * a.scale + bias[i];
      }
      bool bad = false;
      const float top = std::max(tops[lane], kernels::tile_max(row, count, bad));
      // Before anything was seen there is nothing to scale, and -inf less itself is no number.
      shrinks[lane] = tops[lane] == top ? 1.0F : std::exp(tops[lane] - top);
      if (shrinks[lane] != 1.0F) {
        for (std::size_t d = 0; d < a.head_dim; ++d)
          mixed[lane][d] *= shrinks[lane];
      }
      tops[lane] = top;
      if (top == kHidden)
        std::fill_n(row, count, 0.0F);
      else
        kernels::tile_exp(row, count, top, 1.0F, row);
      std::fill(row + count, row + kTile, 0.0F);
      for (std::size_t i = 0; i < kTile; i += kWidth) {
        Floats part;
        load(part, row + i);
        terms[lane] += part;
      }
    }
    float added[kLanes];
    sum_each(terms, added, 1);
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] = sums[lane] * shrinks[lane] + added[lane];
    mix(values + first * stride, stride, a.head_dim, count, scores, mixed);
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const float share = sums[lane] > 0 ? 1.0F / sums[lane] : 0.0F;
    for (std::size_t d = 0; d < a.head_dim; ++d)
      lanes[lane].out[d] = mixed[lane][d] * share;
  }
}

}  // namespace

void attend(const RingAttention& a, std::size_t part) {
  const std::size_t head = part % a.kv_heads;
  const std::size_t first = part / a.kv_heads * kLanes;
  Lane lanes[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    // Where lanes run out the last one is computed again: all take the same path.
    const std::size_t at = std::min(first + lane, a.rows * a.group - 1);
    const std::size_t row = at / a.group;
    const std::size_t offset = ((row * a.group + at % a.group) * a.kv_heads + head) * a.head_dim;
    lanes[lane] = {a.queries + offset, a.bias + row * a.visible, a.out + offset};
  }
  attend_lanes(a, lanes, a.keys + head * a.head_dim, a.values + head * a.head_dim);
}

}  // namespace acespec::ort
