#include "acespec/engine/ort/ort_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/engine/forward_check.h"
#include "acespec/engine/ort/graph.h"
#include "acespec/engine/ort/kv_ring.h"
#include "acespec/engine/ort/runtime.h"
#include "acespec/engine/ort/session.h"

namespace acespec {
namespace {

constexpr std::size_t kMaxRows = 64;
constexpr std::size_t kGranule = 64;
constexpr std::size_t kMostCores = 4096;

/// Largest difference, as a part of the logits' range, between a row computed in a large forward and alone.
/// Kernels for one row and for many may round differently, on a GPU most of all; KV that was lost changes
/// everything.
constexpr float kSameLogits = 0.1F;

std::vector<const char*> pointers(const std::vector<std::string>& names) {
  std::vector<const char*> out;
  for (const std::string& name : names)
    out.push_back(name.c_str());
  return out;
}

}  // namespace

/// The model on one provider.
class OrtEngine::Model {
 public:
  Model(ort::Runtime& runtime, const OrtOptions& options, const std::string& provider)
      : session_(ort::open_session(runtime, options, provider)),
        graph_(ort::read_graph(session_)),
        input_names_(pointers(graph_.inputs)),
        output_names_(pointers(graph_.outputs)) {
    info_.name = options.name.empty() ? options.model : options.name;
    info_.provider = provider;
    info_.vocabulary = options.vocabulary;
    info_.logits_width = graph_.logits_width;
    info_.max_positions = options.max_positions == 0 ? options.slots : options.max_positions;
    info_.slots = options.slots;
    info_.bytes_per_slot = graph_.layers * 2 * graph_.kv_width * graph_.kv_element();
    check_info(info_, kMaxRows, kGranule);

    check_.emplace(info_.slots);
    slot_positions_.resize(info_.slots);
    ring_.emplace(runtime.allocator(), session_, graph_, info_.slots, kGranule, provider != "cpu");
    logits_.reset(new float[kMaxRows * info_.logits_width]);
    inputs_.resize(graph_.inputs.size());
    outputs_.resize(graph_.outputs.size());
    settle();
  }

  [[nodiscard]] const EngineInfo& info() const noexcept { return info_; }

  std::span<const float> forward(const Forward& batch) {
    (*check_)(batch, info_, kMaxRows, kGranule);
    return run(batch, ring_->values(batch.visible));
  }

  void clear() { wipe(Triangle(info_)); }

 private:
  /// The largest forward there is: row t in slot t, seeing slots 0..t.
  struct Triangle {
    explicit Triangle(const EngineInfo& info)
        : visible(info.slots), bias(kMaxRows * info.slots, -std::numeric_limits<float>::infinity()) {
      for (std::size_t row = 0; row < kMaxRows; ++row) {
        tokens.emplace_back(static_cast<std::int32_t>(row % info.vocabulary));
        positions.emplace_back(static_cast<std::int32_t>(row % info.max_positions));
        slots.emplace_back(static_cast<std::uint32_t>(row));
        std::fill_n(bias.begin() + static_cast<std::ptrdiff_t>(row * visible), row + 1, 0.0F);
      }
    }

    std::size_t visible;
    std::vector<TokenId> tokens;
    std::vector<Position> positions;
    std::vector<KvSlot> slots;
    std::vector<float> bias;
  };

  static constexpr std::uint32_t kLast = kMaxRows - 1;

  /// Runs the triangle over a ring of zeros, so that no older key or value survives, and returns its last
  /// row's logits.
  std::span<const float> wipe(const Triangle& all) {
    constexpr std::array<std::uint32_t, 1> kRows{kLast};
    const ort::KvRing::Zeros zeros(graph_, info_.slots);
    return run({all.tokens, all.positions, all.slots, all.bias, all.visible, kRows}, zeros.values());
  }

  std::span<const float> run(const Forward& batch, std::span<OrtValue* const> past) {
    const std::size_t count = batch.tokens.size();
    for (std::size_t row = 0; row < count; ++row) {
      ids_[row] = batch.tokens[row].value();
      positions_[row] = batch.positions[row].value();
      slots_[row] = batch.slots[row].value();
      slot_positions_[batch.slots[row].index()] = positions_[row];
    }
    std::ranges::copy(batch.rows, rows_.begin());
    // Not every kernel takes a tensor without rows, so when no logits are wanted the last row's are computed.
    if (batch.rows.empty())
      rows_[0] = static_cast<std::int64_t>(count) - 1;
    const std::size_t wanted = std::max<std::size_t>(batch.rows.size(), 1);

    // The runtime takes inputs by a pointer to non-const and does not write them.
    const std::array<Ort::Value, ort::kFixedInputs> fixed{
        tensor<std::int64_t>(ids_, {1, count}), tensor<std::int64_t>(positions_, {1, count}),
        tensor<std::int64_t>(slots_, {count}),
        tensor<float>({const_cast<float*>(batch.bias.data()), batch.bias.size()}, {count, batch.visible}),
        tensor<std::int64_t>(rows_, {wanted})};
    const Ort::Value logits =
        tensor<float>({logits_.get(), kMaxRows * info_.logits_width}, {wanted, info_.logits_width});

    const Ort::Value where = tensor<std::int64_t>(slot_positions_, {batch.visible});
    auto next = std::ranges::copy(fixed, inputs_.begin()).out;
    if (graph_.slot_positions)
      *next++ = where;
    std::ranges::copy(past, next);
    outputs_[0] = logits;
    std::ranges::copy(ring_->values(batch.visible), outputs_.begin() + 1);
    Ort::ThrowOnError(Ort::GetApi().Run(session_, nullptr, input_names_.data(), inputs_.data(),
                                        inputs_.size(), output_names_.data(), outputs_.size(),
                                        outputs_.data()));
    return {logits_.get(), batch.rows.size() * info_.logits_width};
  }

  template <class T>
  Ort::Value tensor(std::span<T> data, std::initializer_list<std::size_t> dimensions) const {
    std::array<std::int64_t, 2> shape{};
    std::size_t size = 1;
    std::size_t rank = 0;
    for (const std::size_t dimension : dimensions) {
      shape[rank++] = static_cast<std::int64_t>(dimension);
      size *= dimension;
    }
    return Ort::Value::CreateTensor<T>(host_, data.data(), size, shape.data(), rank);
  }

  /// Runs the largest forward, so that the runtime takes its memory now, then repeats one of its rows alone,
  /// which must give the same logits: the runtime kept what was written to the ring, where it was written.
  void settle() {
    const Triangle all(info_);
    const auto first = wipe(all);
    const std::vector<float> expected(first.begin(),
                                      first.begin() + static_cast<std::ptrdiff_t>(info_.vocabulary));
    constexpr std::array<std::uint32_t, 1> kAlone{0};
    const auto found = forward(
        {std::span(all.tokens).last(1), std::span(all.positions).last(1), std::span(all.slots).last(1),
         std::span(all.bias).subspan(kLast * info_.slots, kGranule), kGranule, kAlone});

    const auto [least, most] = std::ranges::minmax(expected);
    const float limit = kSameLogits * (most - least);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (std::abs(expected[i] - found[i]) <= limit)
        continue;
      throw EngineError("provider " + info_.provider + " does not keep keys and values in place: logit " +
                        std::to_string(i) + " of one row is " + std::to_string(expected[i]) + ", and " +
                        std::to_string(found[i]) + " when the row is computed again");
    }
  }

  Ort::Session session_;
  ort::Graph graph_;
  std::vector<const char*> input_names_;
  std::vector<const char*> output_names_;
  EngineInfo info_;
  std::optional<ForwardCheck> check_;
  std::optional<ort::KvRing> ring_;
  Ort::MemoryInfo host_ = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  std::array<std::int64_t, kMaxRows> ids_{};
  std::array<std::int64_t, kMaxRows> positions_{};
  std::array<std::int64_t, kMaxRows> slots_{};
  std::array<std::int64_t, kMaxRows> rows_{};
  std::vector<std::int64_t> slot_positions_;  ///< by slot; of one never written, 0: no bias shows it
  std::unique_ptr<float[]>
      logits_;  ///< [kMaxRows, logits_width], not touched before it is used: rows are rarely all wanted
  std::vector<const OrtValue*> inputs_;
  std::vector<OrtValue*> outputs_;
};

OrtEngine::OrtEngine(const OrtOptions& options) {
  if (options.threads == 0 || options.threads > 1024) {
    throw UsageError("engine: threads is " + std::to_string(options.threads) + ", must be in 1..1024");
  }
  for (const std::size_t core : options.cores) {
    if (core >= kMostCores) {
      throw UsageError("engine: cores holds " + std::to_string(core) + ", must be numbers below " +
                       std::to_string(kMostCores));
    }
  }
  if (!options.provider_options.empty() && options.provider != "tensorrt" && options.provider != "auto") {
    throw UsageError("engine: provider_options are TensorRT's, and provider is \"" + options.provider + "\"");
  }
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(options.model, unreadable)) {
    throw EngineError("model " + options.model + ": no such file");
  }
  try {
    load(options);
  } catch (const Ort::Exception& error) {
    throw EngineError("model " + options.model + ": " + error.what());
  }
}

void OrtEngine::load(const OrtOptions& options) {
  ort::Runtime& runtime = ort::Runtime::open(options.library);
  const std::vector<std::string> providers = ort::candidates(options.provider, runtime);
  for (const std::string& provider : providers) {
    try {
      model_ = std::make_unique<Model>(runtime, options, provider);
      return;
    } catch (const EngineError& error) {
      if (provider == providers.back())
        throw EngineError("model " + options.model + ": " + error.what());
    } catch (const Ort::Exception&) {
      if (provider == providers.back())
        throw;
    }
  }
}

OrtEngine::~OrtEngine() = default;

const EngineInfo& OrtEngine::info() const noexcept {
  return model_->info();
}
std::size_t OrtEngine::max_rows() const noexcept {
  return kMaxRows;
}
std::size_t OrtEngine::visible_granule() const noexcept {
  return kGranule;
}

std::span<const float> OrtEngine::forward(const Forward& batch) {
  try {
    return model_->forward(batch);
  } catch (const Ort::Exception& error) {
    throw EngineError("engine " + info().name + ": " + error.what());
  }
}

void OrtEngine::clear() {
  try {
    model_->clear();
  } catch (const Ort::Exception& error) {
    throw EngineError("engine " + info().name + ": " + error.what());
  }
}

}  // namespace acespec
