#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/engine/ort/ort_engine.h"

using namespace acespec;

namespace {

constexpr std::size_t kVisible = 64;
constexpr std::size_t kWidth = 64;

OrtOptions tiny(const std::string& file = "tiny_model.onnx") {
  OrtOptions options;
  options.model = std::string(ACESPEC_VECTORS) + "/" + file;
  options.library = ACESPEC_ORT_LIBRARY;
  options.slots = 128;
  options.vocabulary = kWidth;
  options.name = "tiny";
  return options;
}

/// The checked-in prompt and its logits.
struct Golden {
  std::vector<TokenId> prompt;
  std::vector<std::vector<float>> logits;
};

Golden golden() {
  std::ifstream file(std::string(ACESPEC_VECTORS) + "/tiny_model.txt");
  REQUIRE(file.is_open());
  Golden out;
  std::string line;
  std::getline(file, line);
  std::istringstream ids(line);
  for (std::int32_t id = 0; ids >> id;) {
    out.prompt.emplace_back(id);
  }
  while (std::getline(file, line)) {
    std::istringstream numbers(line);
    auto& row = out.logits.emplace_back();
    for (float number = 0; numbers >> number;) {
      row.push_back(number);
    }
  }
  REQUIRE(out.logits.size() == out.prompt.size());
  return out;
}

struct Node {
  TokenId token;
  std::vector<std::uint32_t> sees;  ///< slots of the path down to this node, its own last
};

/// Logits of every node, computed in one forward over the first 64 slots.
std::vector<std::vector<float>> run(Engine& engine, const std::vector<Node>& nodes) {
  std::vector<TokenId> tokens;
  std::vector<Position> positions;
  std::vector<KvSlot> slots;
  std::vector<float> bias(nodes.size() * kVisible, -std::numeric_limits<float>::infinity());
  std::vector<std::uint32_t> rows(nodes.size());
  std::iota(rows.begin(), rows.end(), 0U);
  for (std::size_t row = 0; row < nodes.size(); ++row) {
    tokens.push_back(nodes[row].token);
    positions.emplace_back(static_cast<std::int32_t>(nodes[row].sees.size()) - 1);
    slots.emplace_back(nodes[row].sees.back());
    for (const std::uint32_t slot : nodes[row].sees) {
      bias[row * kVisible + slot] = 0.0F;
    }
  }
  const auto logits = engine.forward({tokens, positions, slots, bias, kVisible, rows});
  REQUIRE(logits.size() == nodes.size() * engine.info().logits_width);
  std::vector<std::vector<float>> out;
  for (std::size_t row = 0; row < nodes.size(); ++row) {
    const auto part = logits.subspan(row * kWidth, kWidth);
    out.emplace_back(part.begin(), part.end());
  }
  return out;
}

/// `tokens` as one path through the slots (first + step * i) mod 64.
std::vector<Node> path(const std::vector<TokenId>& tokens, std::uint32_t first, std::uint32_t step) {
  std::vector<Node> nodes;
  std::vector<std::uint32_t> sees;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    sees.push_back((first + step * static_cast<std::uint32_t>(i)) % kVisible);
    nodes.push_back({tokens[i], sees});
  }
  return nodes;
}

float difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float most = 0.0F;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
  }
  return most;
}

std::string complaint(const OrtOptions& options) {
  try {
    const OrtEngine engine(options);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

bool names(const std::string& message, const std::string& part) {
  CAPTURE(message);
  const bool found = message.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

// First in the file, so that no runtime is open yet: a process keeps the first one that does.
TEST_CASE("a runtime that is too old is named, and does not keep a newer one out") {
  OrtOptions options = tiny();
  options.library = ACESPEC_OLD_RUNTIME;
  names(complaint(options), "ONNX Runtime 1.20.0");
  names(complaint(options), "does not offer API ");
  CHECK(complaint(tiny()).empty());
  names(complaint(options), "one process can use one ONNX Runtime only");
}

TEST_CASE("a loaded model says what it is") {
  const OrtEngine engine(tiny());
  CHECK(engine.info().name == "tiny");
  CHECK(engine.info().provider == "cpu");
  CHECK(engine.info().logits_width == kWidth);
  CHECK(engine.info().max_positions == 128);
  CHECK(engine.info().bytes_per_slot == 2 * 2 * 16 * 4);
  CHECK(OrtEngine(tiny("tiny_model_kv16.onnx")).info().bytes_per_slot == 2 * 2 * 16 * 2);
}

TEST_CASE("logits are the reference's, at once and token by token, in whatever slots") {
  const Golden expected = golden();
  OrtEngine engine(tiny());
  const auto at_once = run(engine, path(expected.prompt, 0, 1));
  const auto scattered = run(engine, path(expected.prompt, 5, 13));
  for (std::size_t row = 0; row < at_once.size(); ++row) {
    CHECK(difference(at_once[row], expected.logits[row]) < 1e-3F);
    CHECK(difference(scattered[row], expected.logits[row]) < 1e-3F);
  }
  for (const Node& node : path(expected.prompt, 40, 7)) {
    const auto alone = run(engine, {node});
    CHECK(difference(alone[0], expected.logits[node.sees.size() - 1]) < 1e-3F);
  }
}

TEST_CASE("a ring in float16 loses only its rounding") {
  const Golden expected = golden();
  OrtEngine engine(tiny("tiny_model_kv16.onnx"));
  const auto logits = run(engine, path(expected.prompt, 5, 13));
  for (std::size_t row = 0; row < logits.size(); ++row) {
    CHECK(difference(logits[row], expected.logits[row]) < 0.05F);
  }
}

TEST_CASE("two engines of one process do not see each other's ring") {
  const Golden expected = golden();
  OrtEngine first(tiny());
  OrtEngine second(tiny());
  const std::size_t half = expected.prompt.size() / 2;
  const std::vector<TokenId> tail(expected.prompt.begin() + static_cast<std::ptrdiff_t>(half),
                                  expected.prompt.end());
  const auto nodes = path(expected.prompt, 0, 1);
  run(first, {nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(half)});
  run(second, path(tail, 0, 1));
  const auto logits = run(first, {nodes.begin() + static_cast<std::ptrdiff_t>(half), nodes.end()});
  CHECK(difference(logits.back(), expected.logits.back()) < 1e-3F);
}

TEST_CASE("threads, kept to cores, spinning or not, change nothing in the logits") {
  const Golden expected = golden();
  for (const bool spinning : {false, true}) {
    OrtOptions options = tiny();
    options.threads = 3;
    options.cores = {0, 1};
    options.spinning = spinning;
    OrtEngine engine(options);
    const auto logits = run(engine, path(expected.prompt, 0, 1));
    CHECK(difference(logits.back(), expected.logits.back()) < 1e-3F);
  }
}

TEST_CASE("no rows wanted, no logits, but the ring is written") {
  const Golden expected = golden();
  OrtEngine engine(tiny());
  const std::vector<KvSlot> slot{KvSlot(3)};
  const std::vector<Position> start{Position(0)};
  std::vector<float> bias(kVisible, -std::numeric_limits<float>::infinity());
  bias[3] = 0.0F;
  CHECK(engine.forward({std::span(expected.prompt).first(1), start, slot, bias, kVisible, {}}).empty());
  const auto logits = run(engine, {{expected.prompt[1], {3, 9}}});
  CHECK(difference(logits[0], expected.logits[1]) < 1e-3F);
}

TEST_CASE("what does not load is named") {
  OrtOptions options = tiny();
  options.model += ".missing";
  names(complaint(options), "tiny_model.onnx.missing: no such file");
  options = tiny("tiny_model.txt");
  names(complaint(options), "tiny_model.txt: ");
  options = tiny();
  options.library = "/nowhere/libonnxruntime.so";
  names(complaint(options), "/nowhere/libonnxruntime.so");
  options = tiny();
  options.slots = 100;
  names(complaint(options), "slots is 100, must be a positive multiple of 64");
  options = tiny();
  options.vocabulary = 65;
  names(complaint(options), "vocabulary is 65, must be at most the model's 64 logits");
  options = tiny();
  options.threads = 0;
  names(complaint(options), "threads is 0");
  options = tiny();
  options.cores = {0, 4096};
  names(complaint(options), "cores holds 4096, must be numbers below 4096");
  options = tiny();
  options.provider = "npu";
  names(complaint(options), "provider is \"npu\", must be auto, tensorrt, cuda or cpu");
  options.provider = "auto";
  CHECK(OrtEngine(options).info().provider == "cpu");
}

TEST_CASE("positions beyond the model's table are refused before anything runs") {
  OrtOptions options = tiny();
  options.max_positions = 8;
  OrtEngine engine(options);
  const Golden expected = golden();
  CHECK_THROWS_AS(run(engine, path(expected.prompt, 0, 1)), UsageError);
}
