#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>

#include "comm/communicator.h"
#include "comm/first_error.h"
#include "core/failure.h"
#include "group/gather_texts.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

namespace {

at::Tensor byte_tensor(std::int64_t count) { return at::empty({count}, at::kByte); }

}  // namespace

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
  const at::Tensor length = at::empty({1}, at::kLong);
  length.fill_(static_cast<std::int64_t>(own.size()));
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.host().all_gather(lengths, length).wait();
  const auto* const counts = lengths.const_data_ptr<std::int64_t>();
  const std::vector<std::size_t> sizes(counts, counts + group.size());

  const at::Tensor input = byte_tensor(static_cast<std::int64_t>(own.size()));
  std::ranges::copy(own, static_cast<char*>(input.mutable_data_ptr()));
  const at::Tensor all =
      byte_tensor(std::accumulate(counts, counts + group.size(), std::int64_t{0}));
  group.host().all_gather(all, input, sizes).wait();
  std::vector<std::string> texts;
  const auto* next = static_cast<const char*>(all.const_data_ptr());
  for (const std::size_t size : sizes) {
    texts.emplace_back(next, size);
    next += size;
  }
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
