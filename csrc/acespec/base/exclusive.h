// Turns a race between threads into an error.
#pragma once

#include <atomic>
#include <string>

#include "acespec/base/error.h"

namespace acespec {

/// For objects that one thread may use at a time: whoever comes while another is inside gets a UsageError
/// instead of undefined behaviour. Not a lock: nobody waits.
class Exclusive {
 public:
  class Scope {
   public:
    /// Throws UsageError naming `what` when it is in use.
    Scope(Exclusive& owner, const char* what) : owner_(owner) {
      if (owner_.busy_.test_and_set(std::memory_order_acquire)) {
        throw UsageError(std::string(what) + " is in use by another thread");
      }
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { owner_.busy_.clear(std::memory_order_release); }

   private:
    Exclusive& owner_;
  };

 private:
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace acespec
