#include <pybind11/numpy.h>
#include <pybind11/operators.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/base/philox.h"
#include "acespec/sampling/sampler.h"
#include "bindings/bind.h"

namespace acespec::bindings {
namespace {

namespace py = pybind11;

/// Borrowed, never converted: a copy of a logit row per token would go unnoticed.
using Logits = py::array_t<float, py::array::c_style>;

std::span<const float> row_of(const Logits& logits) {
  if (logits.ndim() != 1) {
    throw UsageError("logits has " + std::to_string(logits.ndim()) + " dimensions; one row is needed");
  }
  return {logits.data(), static_cast<std::size_t>(logits.size())};
}

py::tuple rank(Sampler& sampler, const Logits& logits, const SamplingRules& rules, std::int32_t position,
               std::size_t count) {
  const std::span<const float> row = row_of(logits);
  std::vector<Candidate> found(std::min(count, sampler.vocabulary()));
  {
    const py::gil_scoped_release unlocked;
    found.resize(sampler.rank(row, rules, Position{position}, found));
  }
  const auto size = static_cast<py::ssize_t>(found.size());
  py::array_t<std::int32_t> tokens(size);
  py::array_t<float> scores(size);
  py::array_t<float> log_p(size);
  for (py::ssize_t i = 0; i < size; ++i) {
    const Candidate& c = found[static_cast<std::size_t>(i)];
    tokens.mutable_at(i) = c.token.value();
    scores.mutable_at(i) = c.score;
    log_p.mutable_at(i) = c.log_p;
  }
  return py::make_tuple(tokens, scores, log_p);
}

std::int32_t choose(Sampler& sampler, const Logits& logits, const SamplingRules& rules,
                    std::int32_t position) {
  const std::span<const float> row = row_of(logits);
  const py::gil_scoped_release unlocked;
  Candidate best;
  static_cast<void>(sampler.rank(row, rules, Position{position}, {&best, 1}));
  return best.token.value();
}

py::array_t<std::uint32_t> gumbel_words(std::uint64_t seed, std::int32_t position, std::int32_t first,
                                        std::int32_t count) {
  if (position < 0 || first < 0 || count < 0 || count > INT32_MAX - first) {
    throw UsageError("position, first and count must be at least 0, and first + count below 2^31");
  }
  py::array_t<std::uint32_t> words(count);
  for (std::int32_t i = 0; i < count; ++i) {
    words.mutable_at(i) = gumbel_word(seed, Position{position}, TokenId{first + i});
  }
  return words;
}

std::string text_of(const SamplingRules& r) {
  return py::str("SamplingRules(temperature={}, top_k={}, top_p={}, min_p={}, seed={})")
      .format(r.temperature, r.top_k, r.top_p, r.min_p, r.seed)
      .cast<std::string>();
}

}  // namespace

void bind_sampling(py::module_& m) {
  py::class_<SamplingRules>(m, "SamplingRules")
      .def(py::init([](float temperature, std::int32_t top_k, float top_p, float min_p, std::uint64_t seed) {
             return SamplingRules{temperature, top_k, top_p, min_p, seed};
           }),
           py::kw_only(), py::arg("temperature") = 0.0F, py::arg("top_k") = 0, py::arg("top_p") = 1.0F,
           py::arg("min_p") = 0.0F, py::arg("seed") = 0)
      .def_readwrite("temperature", &SamplingRules::temperature)
      .def_readwrite("top_k", &SamplingRules::top_k)
      .def_readwrite("top_p", &SamplingRules::top_p)
      .def_readwrite("min_p", &SamplingRules::min_p)
      .def_readwrite("seed", &SamplingRules::seed)
      .def_property_readonly("greedy", &SamplingRules::greedy)
      .def("validate", &SamplingRules::validate)
      .def(py::self == py::self)
      .def("__repr__", &text_of);

  // rank() and choose() release the GIL: one sampler must not be used by two threads at a time.
  py::class_<Sampler>(m, "Sampler")
      .def(py::init<std::size_t>(), py::arg("vocabulary"))
      .def_property_readonly("vocabulary", &Sampler::vocabulary)
      .def("rank", &rank, py::arg("logits").noconvert(), py::arg("rules"), py::arg("position"),
           py::arg("count"))
      .def("choose", &choose, py::arg("logits").noconvert(), py::arg("rules"), py::arg("position"));

  m.def("gumbel_words", &gumbel_words, py::arg("seed"), py::arg("position"), py::arg("first"),
        py::arg("count"));
}

}  // namespace acespec::bindings
