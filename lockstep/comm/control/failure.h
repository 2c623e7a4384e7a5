#pragma once

#include <string>

namespace lockstep::control {

/// Why a world ended.
struct Failure {
  bool timeout = false;
  std::string text = {};
};

}  // namespace lockstep::control
