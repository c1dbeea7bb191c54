// What can go wrong, by whose fault it is. Expected outcomes are values; these are for the rest.
#pragma once

#include <stdexcept>
#include <string>

namespace acespec {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller broke a contract: the message names the field, the value and what would be right.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// The peer sent bytes or a message that the protocol does not allow.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// The model runtime failed, or produced numbers that no distribution can be made of.
class EngineError : public Error {
 public:
  using Error::Error;
};

/// The model and the request's rules together leave no token to draw.
class NoTokenError : public EngineError {
 public:
  using EngineError::EngineError;
};

}  // namespace acespec
