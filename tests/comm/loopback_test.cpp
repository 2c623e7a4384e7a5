#include "tests/comm/loopback/loopback.h"

#include <gtest/gtest.h>

#include "tests/comm/conformance.h"

namespace lockstep::testing {
namespace {

TEST(Loopback, MeetsTheRequirementsOnEveryBackend) {
  check_backend(*create_loopback(std::chrono::seconds(10)));
}

}  // namespace
}  // namespace lockstep::testing
