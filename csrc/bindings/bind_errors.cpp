// The only place where a C++ exception becomes a Python one.
#include "acespec/base/error.h"
#include "bindings/bind.h"

namespace acespec::bindings {

void bind_errors(pybind11::module_& m) {
  namespace py = pybind11;
  // pybind11 asks the translators in reverse order of registration, so the base class comes first.
  const auto& base = py::register_exception<Error>(m, "AcespecError", PyExc_Exception);
  py::register_exception<UsageError>(m, "UsageError", base);
  py::register_exception<PeerError>(m, "PeerError", base);
  py::register_exception<EngineError>(m, "EngineError", base);
}

}  // namespace acespec::bindings
