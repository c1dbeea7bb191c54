#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/engine/blank_engine.h"
#include "acespec/engine/engine.h"
#include "acespec/engine/fake/fake_engine.h"
#include "acespec/engine/ort/ort_engine.h"
#include "acespec/engine/trace/trace_engine.h"
#include "bindings/bind.h"

namespace acespec::bindings {

namespace py = pybind11;

namespace {

using Bias = py::array_t<float, py::array::c_style | py::array::forcecast>;

template <class Id>
std::vector<Id> to_ids(const std::vector<typename Id::rep>& numbers) {
  std::vector<Id> ids;
  ids.reserve(numbers.size());
  for (const auto number : numbers)
    ids.emplace_back(number);
  return ids;
}

py::array_t<float> copy_of(std::span<const float> values, std::vector<py::ssize_t> shape) {
  py::array_t<float> out(std::move(shape));
  std::ranges::copy(values, out.mutable_data());
  return out;
}

py::array_t<float> forward(Engine& engine, const std::vector<std::int32_t>& tokens,
                           const std::vector<std::int32_t>& positions,
                           const std::vector<std::uint32_t>& slots, const Bias& bias,
                           const std::vector<std::uint32_t>& rows) {
  if (bias.ndim() != 2) {
    throw UsageError("forward: bias has " + std::to_string(bias.ndim()) + " dimensions, must have 2: [T, S]");
  }
  const auto token_ids = to_ids<TokenId>(tokens);
  const auto places = to_ids<Position>(positions);
  const auto slot_ids = to_ids<KvSlot>(slots);
  const Forward batch{token_ids,
                      places,
                      slot_ids,
                      {bias.data(), static_cast<std::size_t>(bias.size())},
                      static_cast<std::size_t>(bias.shape(1)),
                      rows};
  // Until the copy is made: the logits live in the engine.
  const Exclusive::Scope scope(engine.owner, "this engine");
  std::span<const float> logits;
  {
    const py::gil_scoped_release release;
    logits = engine.forward(batch);
  }
  return copy_of(
      logits, {static_cast<py::ssize_t>(rows.size()), static_cast<py::ssize_t>(engine.info().logits_width)});
}

void bind_info(py::module_& m) {
  py::class_<EngineInfo>(m, "EngineInfo")
      .def_readonly("name", &EngineInfo::name)
      .def_readonly("provider", &EngineInfo::provider)
      .def_readonly("vocabulary", &EngineInfo::vocabulary)
      .def_readonly("logits_width", &EngineInfo::logits_width)
      .def_readonly("max_positions", &EngineInfo::max_positions)
      .def_readonly("slots", &EngineInfo::slots)
      .def_readonly("bytes_per_slot", &EngineInfo::bytes_per_slot);
}

void bind_ort(py::module_& m) {
  const OrtOptions usual;
  py::class_<OrtEngine, Engine, std::shared_ptr<OrtEngine>>(m, "OrtEngine")
      .def(py::init([](std::string model, std::string library, std::size_t slots, std::size_t vocabulary,
                       std::size_t max_positions, std::size_t threads, std::vector<std::size_t> cores,
                       bool spinning, std::string name, std::string provider,
                       std::vector<std::pair<std::string, std::string>> provider_options) {
             const OrtOptions options{std::move(model),
                                      std::move(library),
                                      slots,
                                      vocabulary,
                                      max_positions,
                                      threads,
                                      std::move(cores),
                                      spinning,
                                      std::move(name),
                                      std::move(provider),
                                      std::move(provider_options)};
             const py::gil_scoped_release release;
             return std::make_shared<OrtEngine>(options);
           }),
           py::arg("model"), py::arg("library"), py::kw_only(), py::arg("slots"), py::arg("vocabulary"),
           py::arg("max_positions") = usual.max_positions, py::arg("threads") = usual.threads,
           py::arg("cores") = usual.cores, py::arg("spinning") = usual.spinning, py::arg("name") = usual.name,
           py::arg("provider") = usual.provider, py::arg("provider_options") = usual.provider_options);
}

void bind_blank(py::module_& m) {
  py::class_<BlankEngine, Engine, std::shared_ptr<BlankEngine>>(m, "BlankEngine")
      .def(py::init<std::size_t, std::size_t>(), py::kw_only(), py::arg("vocabulary"), py::arg("slots"));
}

void bind_fake(py::module_& m) {
  const FakeOptions usual;
  py::class_<FakeEngine, Engine, std::shared_ptr<FakeEngine>>(m, "FakeEngine")
      .def(py::init([](std::size_t vocabulary, std::size_t slots, std::uint64_t seed, std::size_t max_rows,
                       std::size_t max_positions, float sharpness, float disagreement, double base_seconds,
                       double row_seconds) {
             return std::make_shared<FakeEngine>(FakeOptions{vocabulary, slots, max_rows, max_positions, seed,
                                                             sharpness, disagreement, base_seconds,
                                                             row_seconds});
           }),
           py::arg("vocabulary") = usual.vocabulary, py::arg("slots") = usual.slots,
           py::arg("seed") = usual.seed, py::kw_only(), py::arg("max_rows") = usual.max_rows,
           py::arg("max_positions") = usual.max_positions, py::arg("sharpness") = usual.sharpness,
           py::arg("disagreement") = usual.disagreement, py::arg("base_seconds") = usual.base_seconds,
           py::arg("row_seconds") = usual.row_seconds)
      .def(
          "logits",
          [](const FakeEngine& self, const std::vector<std::int32_t>& tokens) {
            const std::vector<float> logits = fake_logits(self.options(), to_ids<TokenId>(tokens));
            return copy_of(logits, {static_cast<py::ssize_t>(logits.size())});
          },
          py::arg("tokens"));
}

using IdRows = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;
using ScoreRows = py::array_t<float, py::array::c_style | py::array::forcecast>;

void set_record(TraceEngine& engine, const std::vector<std::int32_t>& prompt,
                const std::vector<std::int32_t>& text, const IdRows& top, const ScoreRows& scores) {
  if (top.ndim() != 2 || scores.ndim() != 2) {
    throw UsageError("trace record: top and scores have " + std::to_string(top.ndim()) + " and " +
                     std::to_string(scores.ndim()) + " dimensions, must have 2: [N, W]");
  }
  TraceRecord record;
  record.prompt = to_ids<TokenId>(prompt);
  record.text = to_ids<TokenId>(text);
  record.top = to_ids<TokenId>(std::vector<std::int32_t>(top.data(), top.data() + top.size()));
  record.scores.assign(scores.data(), scores.data() + scores.size());
  record.width = static_cast<std::size_t>(top.shape(1));
  engine.set_record(std::move(record));
}

void bind_trace(py::module_& m) {
  const TraceOptions usual;
  py::class_<TraceEngine, Engine, std::shared_ptr<TraceEngine>>(m, "TraceEngine")
      .def(py::init([](std::size_t vocabulary, std::size_t slots, std::size_t max_rows,
                       std::size_t max_positions) {
             return std::make_shared<TraceEngine>(TraceOptions{vocabulary, slots, max_rows, max_positions});
           }),
           py::arg("vocabulary"), py::arg("slots"), py::kw_only(), py::arg("max_rows") = usual.max_rows,
           py::arg("max_positions") = usual.max_positions)
      .def("set_record", &set_record, py::arg("prompt"), py::arg("text"), py::arg("top"), py::arg("scores"));
}

}  // namespace

void bind_engine(py::module_& m) {
  bind_info(m);
  py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
      .def_property_readonly("info", &Engine::info, py::return_value_policy::reference_internal)
      .def_property_readonly("max_rows", &Engine::max_rows)
      .def_property_readonly("visible_granule", &Engine::visible_granule)
      .def("forward", &forward, py::arg("tokens"), py::arg("positions"), py::arg("slots"), py::arg("bias"),
           py::arg("rows"));
  bind_ort(m);
  bind_blank(m);
  bind_fake(m);
  bind_trace(m);
}

}  // namespace acespec::bindings
