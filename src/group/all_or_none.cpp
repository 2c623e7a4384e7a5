#include <exception>
#include <stdexcept>

#include "comm/communicator.h"
#include "comm/first_error.h"
#include "core/failure.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

void all_or_none(const Group& group, const std::function<void()>& fn) {
  auto& communicator = group.host().communicator();
  const auto tell = [&](const std::exception& own) {
    detail::or_own_error(std::current_exception(),
                         [&] { detail::throw_first_error(communicator, &own); });
  };
  try {
    fn();
  } catch (const std::exception& error) {
    tell(error);
  } catch (...) {
    tell(std::runtime_error(detail::current_error_text()));
  }
  detail::throw_first_error(communicator, nullptr);
}

double Group::mean(double value) const {
  auto& communicator = host().communicator();
  const SourceScope scope(communicator, {.content = Source::Content::condition});
  communicator.all_reduce(&value, 1, DType::f64, ReduceOp::sum).wait();
  return value / size();
}

bool Group::any(bool condition) const {
  auto& communicator = host().communicator();
  const SourceScope scope(communicator, {.content = Source::Content::condition});
  communicator.all_reduce(&condition, 1, DType::boolean, ReduceOp::max).wait();
  return condition;
}

}  // namespace lockstep
