// What holds of every message on the wire, whichever side made it.
#pragma once

#include <optional>
#include <string>

#include "acespec/wire/codec.h"

namespace acespec::wire {

/// The first limit or invariant that the message breaks, as a sentence naming field, value and what is right.
[[nodiscard]] std::optional<std::string> problem_of(const Message& message, const Limits& limits);

}  // namespace acespec::wire
