// The native module: a table of contents, one bind_<room>.cpp per room.
#include "bindings/bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "Native core of AceSpec Edge.";
  acespec::bindings::bind_errors(m);
#ifdef ACESPEC_BIND_SAMPLING
  acespec::bindings::bind_sampling(m);
#endif
#ifdef ACESPEC_BIND_WIRE
  acespec::bindings::bind_wire(m);
#endif
#ifdef ACESPEC_BIND_ENGINE
  acespec::bindings::bind_engine(m);
#endif
#ifdef ACESPEC_BIND_DRAFTER
  acespec::bindings::bind_drafter(m);
#endif
}
