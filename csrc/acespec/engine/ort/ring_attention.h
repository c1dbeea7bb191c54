// Attention of a forward's rows over the ring's keys and values. Private to this room.
#pragma once

#include <cstddef>

namespace acespec::ort {

/// One layer's attention. Rows are those of a forward, lanes the (row, query head) pairs that share a key
/// head.
struct RingAttention {
  const float* queries;  ///< [rows, group * kv_heads, head_dim]: head g * kv_heads + j reads key head j
  const float* keys;     ///< [visible, kv_heads, head_dim]
  const float* values;   ///< like the keys
  const float* bias;     ///< [rows, visible], added to the scores; -inf hides a slot
  float* out;            ///< like the queries
  std::size_t rows;
  std::size_t visible;
  std::size_t group;
  std::size_t kv_heads;
  std::size_t head_dim;
  float scale;  ///< of the products
  float cap;    ///< above 0: scores are cap * tanh(score / cap), before the bias

  static constexpr std::size_t kLanes = 4;
  static constexpr std::size_t kMostHeadDim = 256;

  /// How many independent parts attend() divides the work into.
  [[nodiscard]] std::size_t parts() const noexcept {
    return kv_heads * ((rows * group + kLanes - 1) / kLanes);
  }
};

/// Computes part `part` of parts(): kLanes lanes of one key head, reading its keys and values once. The sums
/// of a lane are formed in the same order whatever lanes are beside it, and a hidden slot changes nothing:
/// a row's result does not depend on the rest of the forward. A row that sees no slot gets zeros. Keys and
/// values must be finite, in hidden slots too. Takes no memory. Parts may run at the same time.
void attend(const RingAttention& attention, std::size_t part);

}  // namespace acespec::ort
