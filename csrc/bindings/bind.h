// What each room adds to the module. Python objects are converted here and nowhere else.
#pragma once

#include <pybind11/pybind11.h>

namespace acespec::bindings {

void bind_errors(pybind11::module_& m);
void bind_sampling(pybind11::module_& m);
void bind_wire(pybind11::module_& m);
void bind_engine(pybind11::module_& m);
void bind_policy(pybind11::module_& m);
void bind_drafter(pybind11::module_& m);

}  // namespace acespec::bindings
