#include <pybind11/stl.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "acespec/policy/allocation.h"
#include "acespec/policy/draft_length.h"
#include "acespec/policy/link_estimate.h"
#include "acespec/policy/round_trip.h"
#include "acespec/policy/selection.h"
#include "acespec/policy/width_curve.h"
#include "bindings/bind.h"

namespace acespec::bindings {
namespace {

namespace py = pybind11;

using Reals = std::vector<double>;
using Weights = std::vector<float>;

void bind_costs(py::module_& m) {
  py::class_<WidthCurve>(m, "WidthCurve")
      .def(py::init<std::size_t, double, double>(), py::arg("max_width"), py::arg("first_guess_seconds"),
           py::arg("node_share"))
      .def("observe", &WidthCurve::observe, py::arg("width"), py::arg("seconds"))
      .def("seconds", &WidthCurve::seconds, py::arg("width"))
      .def("table", &WidthCurve::table)
      .def("nodes_within", &WidthCurve::nodes_within, py::arg("seconds"), py::arg("width"));
}

void bind_link(py::module_& m) {
  py::class_<RoundTrip>(m, "RoundTrip")
      .def(py::init<>())
      .def("observe", &RoundTrip::observe, py::arg("seconds"), py::arg("at"), py::arg("rough") = false)
      .def_property_readonly("known", &RoundTrip::known)
      .def_property_readonly("seconds", &RoundTrip::seconds)
      .def_property_readonly("deviation", &RoundTrip::deviation)
      .def_property_readonly("quantile99", &RoundTrip::quantile99);

  py::class_<LinkEstimate>(m, "LinkEstimate")
      .def(py::init<>())
      .def("observe", &LinkEstimate::observe, py::arg("bytes_up"), py::arg("bytes_down"), py::arg("seconds"),
           py::arg("at"), py::arg("rough") = false)
      .def_property_readonly("known", &LinkEstimate::known)
      .def("round_trip", &LinkEstimate::round_trip, py::arg("bytes_up"), py::arg("bytes_down"))
      .def_property_readonly("seconds_per_byte_up", &LinkEstimate::seconds_per_byte_up)
      .def_property_readonly("up_bps", &LinkEstimate::up_bps)
      .def_property_readonly("down_bps", &LinkEstimate::down_bps)
      .def_property_readonly("rtt", &LinkEstimate::rtt)
      .def_property_readonly("deviation", &LinkEstimate::deviation);
}

void bind_allocation(py::module_& m) {
  m.def(
      "stop_probabilities", [](const Reals& acceptances) { return stop_probabilities(acceptances); },
      py::arg("acceptances"));
  m.def("allocate_uniform", &allocate_uniform, py::arg("length"), py::arg("budget"));
  m.def(
      "allocate_nonuniform",
      [](const Reals& stops, const Reals& costs, double budget, double exponent) {
        return allocate_nonuniform(stops, costs, budget, exponent);
      },
      py::arg("stops"), py::arg("costs"), py::arg("budget"), py::arg("exponent"));
}

void bind_selection(py::module_& m) {
  m.def(
      "best_length",
      [](const Reals& prefix, const Reals& seconds, std::size_t most) {
        return best_length(prefix, seconds, most);
      },
      py::arg("prefix"), py::arg("seconds"), py::arg("most"));
  m.def(
      "best_count",
      [](const Weights& weights, const Reals& seconds, double rate) {
        return best_count(weights, seconds, rate);
      },
      py::arg("weights"), py::arg("seconds"), py::arg("rate"));
}

}  // namespace

void bind_policy(py::module_& m) {
  bind_costs(m);
  bind_link(m);
  bind_allocation(m);
  bind_selection(m);
}

}  // namespace acespec::bindings
