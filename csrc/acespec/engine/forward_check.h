// The cheap part of what a caller promises about a Forward, checked alike by every engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "acespec/engine/engine.h"

namespace acespec {

/// Checks sizes, ranges and distinct slots in O(T); the bias is only measured, not read. Not thread-safe;
/// takes its memory at construction.
class ForwardCheck {
 public:
  explicit ForwardCheck(std::size_t slots) : last_seen_(slots, 0) {}

  /// Throws UsageError naming the field, its value and what would be right. `info.slots` is what was given
  /// above.
  void operator()(const Forward& batch, const EngineInfo& info, std::size_t max_rows, std::size_t granule);

 private:
  std::vector<std::uint64_t> last_seen_;  ///< number of the forward that last wrote a slot
  std::uint64_t forward_ = 0;
};

/// Throws UsageError unless the sizes of `info` make an engine: all positive, logits_width >= vocabulary,
/// slots a multiple of `granule`.
void check_info(const EngineInfo& info, std::size_t max_rows, std::size_t granule);

}  // namespace acespec
