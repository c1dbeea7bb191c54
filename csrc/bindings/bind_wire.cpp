#include <pybind11/native_enum.h>
#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/wire/codec.h"
#include "bindings/bind.h"
#include "bindings/convert.h"

namespace acespec::bindings {
namespace {

namespace py = pybind11;
using namespace acespec::wire;

template <std::size_t N>
std::array<std::uint8_t, N> array_of(const char* field, const py::bytes& value) {
  const std::string_view view = value;
  if (view.size() != N) {
    throw UsageError(std::string(field) + " has " + std::to_string(view.size()) + " bytes; " +
                     std::to_string(N) + " are needed");
  }
  std::array<std::uint8_t, N> result{};
  std::copy(view.begin(), view.end(), result.begin());
  return result;
}

template <std::size_t N>
py::bytes bytes_of(const std::array<std::uint8_t, N>& value) {
  return {reinterpret_cast<const char*>(value.data()), N};
}

/// A message class under construction: one place lists a field for its attribute, the constructor and the
/// repr.
template <class Message>
class MessageClass {
 public:
  MessageClass(py::module_& m, const char* name) : class_(m, name) { class_.def(py::self == py::self); }

  template <class T>
  MessageClass& field(const char* name, T Message::* member) {
    class_.def_readwrite(name, member);
    return listed(name);
  }

  MessageClass& tokens(const char* name, std::vector<TokenId> Message::* member) {
    class_.def_property(
        name, [member](const Message& m) { return ids_of(m.*member); },
        [member](Message& m, const Ids& ids) { m.*member = tokens_of(ids); });
    return listed(name);
  }

  MessageClass& token(const char* name, TokenId Message::* member) {
    class_.def_property(
        name, [member](const Message& m) { return (m.*member).value(); },
        [member](Message& m, std::int32_t id) { m.*member = TokenId{id}; });
    return listed(name);
  }

  template <class Pair>
  MessageClass& pairs(const char* name, std::vector<Pair> Message::* member, float Pair::* value) {
    class_.def_property(
        name, [member, value](const Message& m) { return id_pairs_of(m.*member, value); },
        [member](Message& m, const IdPairs& values) { m.*member = pairs_of<Pair>(values); });
    return listed(name);
  }

  template <std::size_t N>
  MessageClass& bytes(const char* name, std::array<std::uint8_t, N> Message::* member) {
    class_.def_property(
        name, [member](const Message& m) { return bytes_of(m.*member); },
        [member, name](Message& m, const py::bytes& value) { m.*member = array_of<N>(name, value); });
    return listed(name);
  }

  MessageClass& blob(const char* name, std::vector<std::uint8_t> Message::* member) {
    class_.def_property(
        name,
        [member](const Message& m) {
          const std::vector<std::uint8_t>& value = m.*member;
          return py::bytes(reinterpret_cast<const char*>(value.data()), value.size());
        },
        [member](Message& m, const py::bytes& value) {
          const std::string_view view = value;
          (m.*member).assign(view.begin(), view.end());
        });
    return listed(name);
  }

  /// Ends the list: a constructor of keywords, each with the default of the C++ field, and a repr.
  void done() {
    const py::tuple names(py::cast(names_));
    class_.attr("__match_args__") = names;
    class_.def(py::init([](const py::kwargs& values) {
      Message message;
      const py::object object = py::cast(&message, py::return_value_policy::reference);
      const py::tuple known = py::type::of<Message>().attr("__match_args__");
      for (const auto& [name, value] : values) {
        if (!known.contains(name)) {
          throw py::type_error("no field " + std::string(py::repr(name)) + " in a " +
                               std::string(py::str(py::type::of<Message>().attr("__name__"))));
        }
        py::setattr(object, name, value);
      }
      return message;
    }));
    class_.def("__repr__", [](const py::object& self) {
      py::list parts;
      for (const py::handle name : py::tuple(py::type::of(self).attr("__match_args__"))) {
        parts.append(py::str("{}={!r}").format(name, self.attr(py::str(name))));
      }
      return py::str("{}({})").format(py::type::of(self).attr("__name__"), py::str(", ").attr("join")(parts));
    });
  }

 private:
  MessageClass& listed(const char* name) {
    names_.emplace_back(name);
    return *this;
  }

  py::class_<Message> class_;
  std::vector<std::string> names_;
};

void bind_messages(py::module_& m) {
  MessageClass<Hello>(m, "Hello")
      .field("version", &Hello::version)
      .bytes("tokenizer", &Hello::tokenizer)
      .field("vocabulary", &Hello::vocabulary)
      .field("drafter", &Hello::drafter)
      .field("chunks", &Hello::chunks)
      .blob("resume", &Hello::resume)
      .done();
  MessageClass<Welcome>(m, "Welcome")
      .field("version", &Welcome::version)
      .field("vocabulary", &Welcome::vocabulary)
      .field("max_context", &Welcome::max_context)
      .field("max_nodes", &Welcome::max_nodes)
      .bytes("session", &Welcome::session)
      .field("target", &Welcome::target)
      .field("keep_s", &Welcome::keep_s)
      .done();
  MessageClass<Open>(m, "Open")
      .field("request", &Open::request)
      .tokens("prompt", &Open::prompt)
      .field("rules", &Open::rules)
      .tokens("stop_ids", &Open::stop_ids)
      .field("max_tokens", &Open::max_tokens)
      .field("free_run", &Open::free_run)
      .field("logprobs", &Open::logprobs)
      .field("grammar_kind", &Open::grammar_kind)
      .field("grammar", &Open::grammar)
      .field("mode", &Open::mode)
      .blob("prompt_zstd", &Open::prompt_zstd)
      .field("held", &Open::held)
      .blob("held_digest", &Open::held_digest)
      .done();
  MessageClass<TokenLogprob>(m, "TokenLogprob")
      .field("logprob", &TokenLogprob::logprob)
      .pairs("top", &TokenLogprob::top, &Alternative::logprob)
      .done();
  MessageClass<SparseRow>(m, "SparseRow")
      .pairs("head", &SparseRow::head, &TokenProbability::p)
      .field("tail_mass", &SparseRow::tail_mass)
      .pairs("tail", &SparseRow::tail, &TokenProbability::p)
      .done();
  MessageClass<Verdict>(m, "Verdict")
      .field("request", &Verdict::request)
      .field("round", &Verdict::round)
      .field("base", &Verdict::base)
      .field("accepted_node", &Verdict::accepted_node)
      .tokens("tokens", &Verdict::tokens)
      .field("finish", &Verdict::finish)
      .field("queue_us", &Verdict::queue_us)
      .field("verify_us", &Verdict::verify_us)
      .field("logprobs", &Verdict::logprobs)
      .field("sparse", &Verdict::sparse)
      .field("reused", &Verdict::reused)
      .tokens("hint", &Verdict::hint)
      .done();
  MessageClass<Cancel>(m, "Cancel").field("request", &Cancel::request).done();
  MessageClass<Close>(m, "Close").field("reason", &Close::reason).done();
  MessageClass<Fault>(m, "Fault")
      .field("request", &Fault::request)
      .field("code", &Fault::code)
      .field("message", &Fault::message)
      .field("retry_after_ms", &Fault::retry_after_ms)
      .done();
  MessageClass<Draft>(m, "Draft")
      .field("request", &Draft::request)
      .field("round", &Draft::round)
      .field("base", &Draft::base)
      .field("first_node", &Draft::first_node)
      .field("parent_offsets", &Draft::parent_offsets)
      .tokens("tokens", &Draft::tokens)
      .field("free_run", &Draft::free_run)
      .field("q", &Draft::q)
      .token("resampled", &Draft::resampled)
      .field("more_tail", &Draft::more_tail)
      .field("wants_hint", &Draft::wants_hint)
      .done();
}

}  // namespace

void bind_wire(py::module_& m) {
  m.attr("PROTOCOL_VERSION") = kProtocolVersion;
  m.attr("DIGEST_BYTES") = kDigestBytes;

  py::native_enum<Finish>(m, "Finish", "enum.IntEnum")
      .value("none", Finish::kNone)
      .value("stop", Finish::kStop)
      .value("length", Finish::kLength)
      .value("cancelled", Finish::kCancelled)
      .value("context", Finish::kContext)
      .finalize();
  py::native_enum<FaultCode>(m, "FaultCode", "enum.IntEnum")
      .value("protocol", FaultCode::kProtocol)
      .value("version", FaultCode::kVersion)
      .value("tokenizer", FaultCode::kTokenizer)
      .value("unauthorized", FaultCode::kUnauthorized)
      .value("busy", FaultCode::kBusy)
      .value("request", FaultCode::kRequest)
      .value("internal", FaultCode::kInternal)
      .value("gone", FaultCode::kGone)
      .finalize();

  py::native_enum<Mode>(m, "Mode", "enum.IntEnum")
      .value("coupled", Mode::kCoupled)
      .value("residual", Mode::kResidual)
      .finalize();
  py::native_enum<Grammar>(m, "Grammar", "enum.IntEnum")
      .value("none", Grammar::kNone)
      .value("json_schema", Grammar::kJsonSchema)
      .value("regex", Grammar::kRegex)
      .finalize();

  bind_messages(m);

  py::class_<Limits>(m, "Limits")
      .def(py::init([](std::size_t max_bytes, std::size_t max_nodes, std::size_t max_prompt,
                       std::size_t max_stop_ids, std::size_t max_text, std::size_t max_listed,
                       std::size_t max_grammar, std::size_t max_sparse) {
             return Limits{max_bytes, max_nodes,  max_prompt,  max_stop_ids,
                           max_text,  max_listed, max_grammar, max_sparse};
           }),
           py::kw_only(), py::arg("max_bytes") = Limits{}.max_bytes,
           py::arg("max_nodes") = Limits{}.max_nodes, py::arg("max_prompt") = Limits{}.max_prompt,
           py::arg("max_stop_ids") = Limits{}.max_stop_ids, py::arg("max_text") = Limits{}.max_text,
           py::arg("max_listed") = Limits{}.max_listed, py::arg("max_grammar") = Limits{}.max_grammar,
           py::arg("max_sparse") = Limits{}.max_sparse)
      .def_readonly("max_bytes", &Limits::max_bytes)
      .def_readonly("max_nodes", &Limits::max_nodes)
      .def_readonly("max_prompt", &Limits::max_prompt)
      .def_readonly("max_stop_ids", &Limits::max_stop_ids)
      .def_readonly("max_text", &Limits::max_text)
      .def_readonly("max_listed", &Limits::max_listed)
      .def_readonly("max_grammar", &Limits::max_grammar)
      .def_readonly("max_sparse", &Limits::max_sparse);

  m.def(
      "encode",
      [](const Message& message, const Limits& limits) {
        const std::vector<std::uint8_t> bytes = encode(message, limits);
        return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      },
      py::arg("message"), py::arg_v("limits", Limits{}, "Limits()"));
  m.def(
      "decode",
      [](const py::bytes& data, const Limits& limits) {
        const std::string_view view = data;
        return decode({reinterpret_cast<const std::uint8_t*>(view.data()), view.size()}, limits);
      },
      py::arg("data"), py::arg_v("limits", Limits{}, "Limits()"));
}

}  // namespace acespec::bindings
