// The native module: a table of contents, one bind_<room>.cpp per room.
#include "bindings/bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "Native core of AceSpec Edge.";
  acespec::bindings::bind_errors(m);
  acespec::bindings::bind_sampling(m);
  acespec::bindings::bind_wire(m);
  acespec::bindings::bind_engine(m);
  acespec::bindings::bind_policy(m);
  acespec::bindings::bind_drafter(m);
}
