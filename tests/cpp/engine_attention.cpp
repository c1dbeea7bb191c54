// Attention over the ring against sums in double precision, one row and one head at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "acespec/engine/ort/ring_attention.h"

namespace {

using acespec::ort::RingAttention;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

/// A layer of random rows; every row sees a random half of the slots, and at least slot 0.
struct Layer {
  std::vector<float> queries, keys, values, bias, out;
  RingAttention attention{};

  Layer(std::size_t rows, std::size_t visible, std::size_t group, std::size_t kv_heads, std::size_t head_dim,
        float cap, unsigned seed) {
    std::mt19937 chance(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& to, std::size_t size) {
      to.resize(size);
      std::ranges::generate(to, [&] { return normal(chance); });
    };
    fill(queries, rows * group * kv_heads * head_dim);
    fill(keys, visible * kv_heads * head_dim);
    fill(values, keys.size());
    fill(bias, rows * visible);
    for (std::size_t i = 0; i < bias.size(); ++i) {
      if (i % visible != 0 && chance() % 2 == 0)
        bias[i] = kHidden;
    }
    out.assign(queries.size(), 77.0F);
    attention = {queries.data(), keys.data(), values.data(), bias.data(), out.data(), rows,
                 visible,        group,       kv_heads,      head_dim,    0.3F,       cap};
  }

  void run() {
    for (std::size_t part = 0; part < attention.parts(); ++part)
      acespec::ort::attend(attention, part);
  }

  [[nodiscard]] std::vector<double> expected(std::size_t row, std::size_t head) const {
    const RingAttention& a = attention;
    const std::size_t key_head = head % a.kv_heads;
    const float* const query = &queries[(row * a.group * a.kv_heads + head) * a.head_dim];
    std::vector<double> mixed(a.head_dim);
    double sum = 0.0;
    for (std::size_t slot = 0; slot < a.visible; ++slot) {
      const std::size_t place = (slot * a.kv_heads + key_head) * a.head_dim;
      double score = 0.0;
      for (std::size_t d = 0; d < a.head_dim; ++d)
        score += static_cast<double>(query[d]) * static_cast<double>(keys[place + d]);
      score *= static_cast<double>(a.scale);
      if (a.cap > 0)
        score = static_cast<double>(a.cap) * std::tanh(score / static_cast<double>(a.cap));
      const double term = std::exp(score + static_cast<double>(bias[row * a.visible + slot]));
      sum += term;
      for (std::size_t d = 0; d < a.head_dim; ++d)
        mixed[d] += term * static_cast<double>(values[place + d]);
    }
    for (double& x : mixed)
      x /= sum;
    return mixed;
  }
};

void check_all(Layer& layer) {
  layer.run();
  const RingAttention& a = layer.attention;
  double worst = 0.0;
  for (std::size_t row = 0; row < a.rows; ++row) {
    for (std::size_t head = 0; head < a.group * a.kv_heads; ++head) {
      const std::vector<double> wanted = layer.expected(row, head);
      const float* const found = &layer.out[(row * a.group * a.kv_heads + head) * a.head_dim];
      for (std::size_t d = 0; d < a.head_dim; ++d)
        worst = std::max(worst, std::abs(static_cast<double>(found[d]) - wanted[d]));
    }
  }
  CHECK(worst < 1e-5);
}

}  // namespace

TEST_CASE("what rows see is mixed as the softmax of their scores says") {
  unsigned seed = 1;
  for (const std::size_t head_dim : {4U, 16U, 40U, 64U, 256U}) {
    for (const auto& [rows, group] : {std::pair{1U, 1U}, std::pair{1U, 7U}, std::pair{5U, 3U}}) {
      for (const std::size_t visible : {64U, 192U, 100U}) {
        CAPTURE(head_dim);
        CAPTURE(rows);
        CAPTURE(visible);
        Layer layer(rows, visible, group, 2, head_dim, 0.0F, ++seed);
        check_all(layer);
      }
    }
  }
}

TEST_CASE("scores are capped before the bias") {
  Layer layer(3, 128, 2, 2, 32, 1.5F, 5);
  check_all(layer);
}

TEST_CASE("scores far apart do not overflow") {
  Layer layer(2, 256, 1, 1, 16, 0.0F, 6);
  for (std::size_t i = 0; i < layer.bias.size(); i += 3)
    layer.bias[i] = static_cast<float>(i % 256) * 2.0F - 200.0F;
  check_all(layer);
}

TEST_CASE("hidden slots change no bit, wherever they lie and whatever they hold") {
  Layer layer(2, 128, 3, 2, 64, 0.0F, 7);
  layer.run();
  const std::vector<float> before = layer.out;

  // The same slots with 64 hidden ones before and 64 behind.
  Layer wide(2, 256, 3, 2, 64, 0.0F, 8);
  wide.queries = layer.queries;
  std::ranges::fill(wide.bias, kHidden);
  for (std::size_t row = 0; row < 2; ++row)
    std::copy_n(&layer.bias[row * 128], 128, &wide.bias[row * 256 + 64]);
  std::ranges::copy(layer.keys, wide.keys.begin() + 64 * 2 * 64);
  std::ranges::copy(layer.values, wide.values.begin() + 64 * 2 * 64);
  wide.run();
  CHECK(wide.out == before);
}

TEST_CASE("a row's result does not depend on the rows beside it") {
  Layer all(6, 128, 3, 2, 64, 0.0F, 9);
  all.run();
  const std::size_t width = std::size_t{3} * 2 * 64;
  for (std::size_t row = 0; row < 6; ++row) {
    std::vector<float> alone(width);
    RingAttention one = all.attention;
    one.queries += row * width;
    one.bias += row * 128;
    one.out = alone.data();
    one.rows = 1;
    for (std::size_t part = 0; part < one.parts(); ++part)
      acespec::ort::attend(one, part);
    CHECK(std::equal(alone.begin(), alone.end(), all.out.begin() + static_cast<std::ptrdiff_t>(row * width)));
  }
}

TEST_CASE("a row that sees nothing gets zeros") {
  Layer layer(2, 64, 1, 1, 16, 0.0F, 10);
  std::fill_n(layer.bias.begin(), 64, kHidden);
  layer.run();
  CHECK(std::all_of(layer.out.begin(), layer.out.begin() + 16, [](float x) { return x == 0.0F; }));
  CHECK(layer.out[16] != 77.0F);
}
