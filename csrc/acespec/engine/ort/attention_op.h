// RingAttention as an operator of the runtime. Private to this room.
#pragma once

#include <memory>

#include "acespec/engine/ort/api.h"

namespace acespec::ort {

/// Our own operators, for every session to be added to: domain "acespec", with RingAttention. What it
/// computes is written in the exported model too, as a function of standard operators by the same name, which
/// a runtime without ours takes instead. Made when the library is open; must outlive all sessions.
class OwnOperators {
 public:
  OwnOperators();
  ~OwnOperators();
  OwnOperators(const OwnOperators&) = delete;
  OwnOperators& operator=(const OwnOperators&) = delete;

  [[nodiscard]] OrtCustomOpDomain* domain() noexcept { return domain_; }

 private:
  struct Operators;

  std::unique_ptr<Operators> operators_;
  Ort::CustomOpDomain domain_;
};

}  // namespace acespec::ort
