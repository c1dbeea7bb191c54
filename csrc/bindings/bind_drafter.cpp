#include "acespec/drafter/drafter.h"

#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "acespec/base/error.h"

#include "bindings/bind.h"
#include "bindings/convert.h"

namespace acespec::bindings {

namespace py = pybind11;

namespace {

using MaskWords = py::array_t<std::uint32_t, py::array::c_style>;

/// A Python callable as a grammar's mask: called while step() has the GIL released.
class PythonMask {
 public:
  explicit PythonMask(py::function source) : held_(new Held{std::move(source), {}}, let_go) {}

  std::span<const std::uint32_t> operator()(std::span<const TokenId> path) const {
    const py::gil_scoped_acquire locked;
    const py::object words = held_->source(ids_of(path));
    if (words.is_none()) {
      return {};
    }
    if (!py::isinstance<MaskWords>(words)) {
      throw UsageError("a mask must be None or a C-contiguous array of uint32");
    }
    held_->words = py::reinterpret_borrow<MaskWords>(words);
    return {held_->words.data(), static_cast<std::size_t>(held_->words.size())};
  }

 private:
  struct Held {
    py::function source;
    MaskWords words;  // of the last call
  };

  // The last copy of this object may go while the GIL is released.
  static void let_go(Held* held) {
    const py::gil_scoped_acquire locked;
    delete held;
  }

  std::shared_ptr<Held> held_;
};

py::dict to_dict(const DrafterSnapshot& snapshot) {
  using py::literals::operator""_a;
  py::list nodes;
  for (const auto& node : snapshot.nodes) {
    nodes.append(py::dict("id"_a = node.id.value(), "parent"_a = node.parent.value(),
                          "token"_a = node.token.value(), "position"_a = node.position.value(),
                          "log_weight"_a = node.log_weight, "expanded"_a = node.expanded,
                          "number"_a = node.number));
  }
  const CacheSnapshot& cache = snapshot.cache;
  return py::dict("nodes"_a = nodes, "committed"_a = snapshot.committed, "pending"_a = snapshot.pending,
                  "slots"_a = cache.capacity, "free"_a = cache.free, "evictable"_a = cache.evictable,
                  "pinned"_a = cache.pinned, "links"_a = cache.links, "bytes"_a = cache.bytes);
}

}  // namespace

void bind_drafter(py::module_& m) {
  py::class_<DrafterOptions>(m, "DrafterOptions")
      .def(py::init(
               [](std::size_t context, std::size_t candidates, std::size_t max_nodes, float sharpness,
                  float floor) { return DrafterOptions{context, candidates, max_nodes, sharpness, floor}; }),
           py::kw_only(), py::arg("context") = DrafterOptions{}.context,
           py::arg("candidates") = DrafterOptions{}.candidates,
           py::arg("max_nodes") = DrafterOptions{}.max_nodes,
           py::arg("sharpness") = DrafterOptions{}.sharpness, py::arg("floor") = DrafterOptions{}.floor)
      .def_readonly("context", &DrafterOptions::context)
      .def_readonly("candidates", &DrafterOptions::candidates)
      .def_readonly("max_nodes", &DrafterOptions::max_nodes)
      .def_readonly("sharpness", &DrafterOptions::sharpness)
      .def_readonly("floor", &DrafterOptions::floor);

  py::native_enum<Arm>(m, "Arm", "enum.IntEnum")
      .value("measured", Arm::kMeasured)
      .value("single", Arm::kSingle)
      .value("allotted", Arm::kAllotted)
      .value("none", Arm::kNone)
      .finalize();

  py::class_<Taken>(m, "Taken")
      .def_property_readonly("tokens", [](const Taken& self) { return ids_of(self.tokens); })
      .def_readonly("parents", &Taken::parents);

  py::class_<StepReport>(m, "StepReport")
      .def_readonly("rows", &StepReport::rows)
      .def_readonly("seconds", &StepReport::seconds)
      .def_readonly("prefilling", &StepReport::prefilling)
      .def_readonly("exhausted", &StepReport::exhausted);

  py::class_<Recovery>(m, "Recovery")
      .def_readonly("hit", &Recovery::hit)
      .def_readonly("ready", &Recovery::ready)
      .def_readonly("microseconds", &Recovery::microseconds);

  py::class_<Drafter>(m, "Drafter")
      .def(py::init<std::shared_ptr<Engine>, const DrafterOptions&>(), py::arg("engine"),
           py::arg("options") = DrafterOptions{})
      .def(
          "begin",
          [](Drafter& self, const Ids& prompt, const SamplingRules& rules, const Ids& stop_ids,
             bool residual) { return self.begin(tokens_of(prompt), rules, tokens_of(stop_ids), residual); },
          py::arg("prompt"), py::arg("rules"), py::arg("stop_ids") = Ids{}, py::arg("residual") = false)
      .def(
          "set_mask",
          [](Drafter& self, const std::optional<py::function>& source) {
            self.set_mask(source ? MaskSource(PythonMask(*source)) : nullptr);
          },
          py::arg("source"))
      .def("step", &Drafter::step, py::arg("width"), py::arg("extend"),
           py::call_guard<py::gil_scoped_release>())
      .def("set_arm", &Drafter::set_arm, py::arg("arm"))
      .def(
          "allot",
          [](Drafter& self, const std::vector<std::size_t>& alternatives) { self.allot(alternatives); },
          py::arg("alternatives"))
      .def("frontier", &Drafter::frontier, py::arg("most"))
      .def(
          "prospect",
          [](Drafter& self, std::size_t count) {
            const Prospect prospect = self.prospect(count);
            return std::pair(prospect.accepted, prospect.fits);
          },
          py::arg("count"))
      .def("survey", &Drafter::survey, py::arg("most"))
      .def("take", &Drafter::take, py::arg("count"))
      .def("take_chain", &Drafter::take_chain, py::arg("length"))
      .def("skip_numbers", &Drafter::skip_numbers, py::arg("count"))
      .def("chain_acceptances", &Drafter::chain_acceptances, py::arg("most"))
      .def("acceptance", &Drafter::acceptance)
      .def_property_readonly("chain_weights", &Drafter::chain_weights)
      .def(
          "resample",
          [](const Drafter& self, std::size_t depth, const SparseRow& row) {
            return id_of(self.resample(depth, row));
          },
          py::arg("depth"), py::arg("row"))
      .def(
          "apply_verdict",
          [](Drafter& self, const Ids& tokens) { return self.apply_verdict(tokens_of(tokens)); },
          py::arg("tokens"))
      .def_property_readonly("ready", &Drafter::ready)
      .def_property_readonly("unsent", &Drafter::unsent)
      .def_property_readonly("committed", &Drafter::committed)
      .def_property_readonly("pending", &Drafter::pending)
      .def_property_readonly("room", &Drafter::room)
      .def("snapshot", [](const Drafter& self) { return to_dict(self.snapshot()); })
      .def("check", &Drafter::check);
}

}  // namespace acespec::bindings
