#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/base/philox.h"
#include "acespec/sampling/residual.h"
#include "acespec/sampling/sampler.h"
#include "acespec/sampling/shaper.h"
#include "bindings/bind.h"
#include "bindings/convert.h"

namespace acespec::bindings {
namespace {

namespace py = pybind11;

/// Borrowed, never converted: a copy of a logit row per token would go unnoticed.
using Logits = py::array_t<float, py::array::c_style>;
using MaskWords = py::array_t<std::uint32_t, py::array::c_style>;

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

py::array_t<float> probabilities(Sampler& sampler, const Logits& logits, const SamplingRules& rules) {
  const std::span<const float> row = row_of(logits);
  py::array_t<float> out(static_cast<py::ssize_t>(sampler.vocabulary()));
  const std::span<float> entries(out.mutable_data(), sampler.vocabulary());
  const py::gil_scoped_release unlocked;
  sampler.probabilities(row, rules, entries);
  return out;
}

QuantisedDistribution quantise(Sampler& sampler, const Logits& logits, const SamplingRules& rules) {
  const std::span<const float> row = row_of(logits);
  const py::gil_scoped_release unlocked;
  // Under greedy rules the likeliest token is all there is to draw.
  const std::size_t most = rules.greedy() ? 1 : QuantisedDistribution::kMostTokens;
  std::vector<Candidate> likeliest(std::min(sampler.vocabulary(), most));
  return QuantisedDistribution(std::span(likeliest).first(sampler.likeliest(row, rules, likeliest)));
}

std::pair<double, double> stream_uniforms(std::uint64_t seed, Stream stream, std::int32_t position,
                                          std::uint32_t attempt) {
  const PhiloxWords words = stream_words(seed, stream, Position{position}, attempt);
  return {uniform(words.w0, words.w1), uniform(words.w2, words.w3)};
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

py::array_t<float, py::array::c_style> shape(LogitShaper& shaper, const Logits& logits, const Ids& path,
                                             const std::optional<MaskWords>& mask) {
  const std::span<const float> row = row_of(logits);
  std::span<const std::uint32_t> words;
  if (mask) {
    words = {mask->data(), static_cast<std::size_t>(mask->size())};
  }
  const std::vector<TokenId> tokens = tokens_of(path);
  std::span<const float> shaped;
  {
    const py::gil_scoped_release unlocked;
    shaped = shaper.shape(row, tokens, words);
  }
  return shaped.data() == row.data() ? logits
                                     : Logits(static_cast<py::ssize_t>(shaped.size()), shaped.data());
}

/// Names the fields that are not at their defaults; those of the draw always.
std::string text_of(const py::object& rules) {
  py::list parts;
  for (const char* name :
       {"temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "logit_bias", "banned", "allowed", "min_tokens", "carried"}) {
    const py::object value = rules.attr(name);
    if (parts.size() < 5 || !value.equal(py::cast(SamplingRules{}).attr(name))) {
      parts.append(py::str("{}={!r}").format(name, value));
    }
  }
  return py::str("SamplingRules({})").format(py::str(", ").attr("join")(parts)).cast<std::string>();
}

}  // namespace

void bind_sampling(py::module_& m) {
  py::class_<SamplingRules>(m, "SamplingRules")
      .def(py::init([](float temperature, std::int32_t top_k, float top_p, float min_p, std::uint64_t seed,
                       float repetition_penalty, float presence_penalty, float frequency_penalty,
                       const IdPairs& logit_bias, const Ids& banned, const Ids& allowed,
                       std::uint32_t min_tokens, std::uint32_t carried) {
             return SamplingRules{temperature,
                                  top_k,
                                  top_p,
                                  min_p,
                                  seed,
                                  repetition_penalty,
                                  presence_penalty,
                                  frequency_penalty,
                                  pairs_of<LogitBias>(logit_bias),
                                  tokens_of(banned),
                                  tokens_of(allowed),
                                  min_tokens,
                                  carried};
           }),
           py::kw_only(), py::arg("temperature") = 0.0F, py::arg("top_k") = 0, py::arg("top_p") = 1.0F,
           py::arg("min_p") = 0.0F, py::arg("seed") = 0, py::arg("repetition_penalty") = 1.0F,
           py::arg("presence_penalty") = 0.0F, py::arg("frequency_penalty") = 0.0F,
           py::arg("logit_bias") = IdPairs{}, py::arg("banned") = Ids{}, py::arg("allowed") = Ids{},
           py::arg("min_tokens") = 0, py::arg("carried") = 0)
      .def_readwrite("temperature", &SamplingRules::temperature)
      .def_readwrite("top_k", &SamplingRules::top_k)
      .def_readwrite("top_p", &SamplingRules::top_p)
      .def_readwrite("min_p", &SamplingRules::min_p)
      .def_readwrite("seed", &SamplingRules::seed)
      .def_readwrite("repetition_penalty", &SamplingRules::repetition_penalty)
      .def_readwrite("presence_penalty", &SamplingRules::presence_penalty)
      .def_readwrite("frequency_penalty", &SamplingRules::frequency_penalty)
      .def_property(
          "logit_bias", [](const SamplingRules& r) { return id_pairs_of(r.logit_bias, &LogitBias::bias); },
          [](SamplingRules& r, const IdPairs& values) { r.logit_bias = pairs_of<LogitBias>(values); })
      .def_property(
          "banned", [](const SamplingRules& r) { return ids_of(r.banned); },
          [](SamplingRules& r, const Ids& ids) { r.banned = tokens_of(ids); })
      .def_property(
          "allowed", [](const SamplingRules& r) { return ids_of(r.allowed); },
          [](SamplingRules& r, const Ids& ids) { r.allowed = tokens_of(ids); })
      .def_readwrite("min_tokens", &SamplingRules::min_tokens)
      .def_readwrite("carried", &SamplingRules::carried)
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
      .def("choose", &choose, py::arg("logits").noconvert(), py::arg("rules"), py::arg("position"))
      .def("probabilities", &probabilities, py::arg("logits").noconvert(), py::arg("rules"))
      .def("quantise", &quantise, py::arg("logits").noconvert(), py::arg("rules"));

  py::class_<LogitShaper>(m, "LogitShaper")
      .def(py::init([](std::size_t vocabulary, const SamplingRules& rules, const Ids& prompt,
                       const Ids& stop_ids) {
             return LogitShaper(vocabulary, rules, tokens_of(prompt), tokens_of(stop_ids));
           }),
           py::arg("vocabulary"), py::arg("rules"), py::arg("prompt"), py::arg("stop_ids") = Ids{})
      .def(
          "commit", [](LogitShaper& self, const Ids& tokens) { self.commit(tokens_of(tokens)); },
          py::arg("tokens"))
      .def("shapes", &LogitShaper::shapes)
      .def("shape", &shape, py::arg("logits").noconvert(), py::arg("path") = Ids{},
           py::arg("mask").noconvert() = py::none());

  py::native_enum<Stream>(m, "Stream", "enum.IntEnum")
      .value("draw", Stream::kDraw)
      .value("accept", Stream::kAccept)
      .value("tail", Stream::kTail)
      .value("residual", Stream::kResidual)
      .finalize();
  m.def("stream_uniforms", &stream_uniforms, py::arg("seed"), py::arg("stream"), py::arg("position"),
        py::arg("attempt") = 0);

  py::class_<QuantisedDistribution>(m, "QuantisedDistribution")
      .def(
          "draw", [](const QuantisedDistribution& q, std::uint32_t word) { return q.draw(word).value(); },
          py::arg("word"))
      .def(
          "weight",
          [](const QuantisedDistribution& q, std::int32_t token) { return q.weight(TokenId{token}); },
          py::arg("token"))
      .def_property_readonly("tokens", [](const QuantisedDistribution& q) { return ids_of(q.tokens()); });

  m.def(
      "residual_draw",
      [](const SparseRow& row, const QuantisedDistribution& q, std::uint64_t seed, std::int32_t position) {
        return id_of(residual_draw(row, q, seed, Position{position}));
      },
      py::arg("row"), py::arg("q"), py::arg("seed"), py::arg("position"));

  m.def("gumbel_words", &gumbel_words, py::arg("seed"), py::arg("position"), py::arg("first"),
        py::arg("count"));
}

}  // namespace acespec::bindings
