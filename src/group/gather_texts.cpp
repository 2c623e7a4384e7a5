#include "group/gather_texts.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

namespace lockstep::inline v0_2::detail {

std::vector<std::string> gather(const std::string& own, const Group& group) {
  const at::Tensor length = at::empty({1}, at::kLong);
  length.fill_(static_cast<std::int64_t>(own.size()));
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.host().all_gather(lengths, length).wait();
  const auto* const counts = lengths.const_data_ptr<std::int64_t>();
  const std::vector<std::size_t> sizes(counts, counts + group.size());

  const at::Tensor input = at::empty({static_cast<std::int64_t>(own.size())}, at::kByte);
  std::ranges::copy(own, static_cast<char*>(input.mutable_data_ptr()));
  std::int64_t sum = 0;
  for (const std::size_t size : sizes) sum += static_cast<std::int64_t>(size);
  const at::Tensor all = at::empty({sum}, at::kByte);
  group.host().all_gather(all, input, sizes).wait();
  std::vector<std::string> texts;
  const auto* next = static_cast<const char*>(all.const_data_ptr());
  for (const std::size_t size : sizes) {
    texts.emplace_back(next, size);
    next += size;
  }
  return texts;
}

}  // namespace lockstep::detail
