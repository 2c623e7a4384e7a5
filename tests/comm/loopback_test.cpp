#include "tests/comm/loopback/loopback.h"

#include <string>

#include "lockstep/error.h"
#include "tests/comm/conformance.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST(Loopback, MeetsTheRequirementsOnEveryBackend) {
  const auto world = create_loopback(10s);
  check_collectives(*world);
  check_in_flight(*world);
  check_skew(*world);
  check_places(*world);
  check_split(*world);
  check_messages(*world);
  check_tags(*world);
  check_waits(*world);
  check_denormals(*world);
}

TEST(Loopback, EndsAWaitForAMessageThatNobodySends) {
  const auto world = create_loopback(50ms);
  std::int64_t number = 0;
  auto received = recv_number(*world, number, 0, 7);
  EXPECT_THAT([&] { received.wait(); },
              ThrowsMessage<TimeoutError>(HasSubstr("recv #1 from rank 0 waited 0.05 s for ")));
  EXPECT_THROW(world->barrier().wait(), CommError) << "the world has failed";
}

TEST(Loopback, EndsTheWorldByAMessageOfAnotherSize) {
  const auto world = create_loopback(10s);
  std::array<std::int64_t, 2> numbers{};
  world->send(numbers.data(), 2, DType::i64, 0).wait();
  auto received = world->recv(numbers.data(), 1, DType::i64, 0);
  EXPECT_THROW(received.wait(), CommError);
}

}  // namespace
}  // namespace lockstep::testing
