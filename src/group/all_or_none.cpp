#include <cstddef>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/first_error.h"
#include "core/failure.h"
#include "group/gather.h"
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

std::vector<std::string> detail::gather(const std::string& own, const Group& group) {
  const auto sizes = gather_values(own.size(), group);
  std::string all(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), '\0');
  group.host().communicator().all_gather(own.data(), all.data(), Parts(sizes), DType::u8).wait();
  std::vector<std::string> texts;
  for (std::size_t begin = 0; const auto size : sizes)
    texts.push_back(all.substr(std::exchange(begin, begin + size), size));
  return texts;
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
