#include "parallel/reducer/group_wrappers.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "core/text.h"
#include "parallel/agree.h"
#include "parallel/reducer/reducer.h"

namespace lockstep::inline v0_2::detail {
namespace {

constexpr std::uint8_t reached = 1, not_reached = 2;

}  // namespace

void GroupWrappers::add_member(Reducer& wrapper) {
  remove_member(wrapper);
  const auto next = std::ranges::upper_bound(members_, wrapper.number(), {}, &Reducer::number);
  members_.insert(next, &wrapper);
}

void GroupWrappers::remove_member(const Reducer& wrapper) { std::erase(members_, &wrapper); }

bool GroupWrappers::is_one_of_several(const Reducer& wrapper) const {
  return members_.size() > 1 && std::ranges::find(members_, &wrapper) != members_.end();
}

void GroupWrappers::begin(const void* exchange) {
  if (first_ != nullptr) return;
  first_ = exchange;
  first_member_ = nullptr;
  is_agreed_ = true;
}

void GroupWrappers::end(const void* exchange) {
  if (first_ == exchange) first_ = nullptr;
}

void GroupWrappers::reach(Reducer& member, const void* exchange) {
  if (first_ != exchange || !is_one_of_several(member)) return;
  end_agreement();  // of a backward that ended by an exception
  first_member_ = &member;
  is_agreed_ = false;
  const SourceScope scope(group_.communicator(), {.content = Source::Content::wrappers});
  agreement_.begin(Compared<std::uint64_t>(member.number()));
}

void GroupWrappers::end_agreement() {
  if (agreement_.pending()) is_agreed_ = agreement_.end().is_equal();
}

bool GroupWrappers::may_begin(const void* exchange) {
  if (first_ != exchange) return false;
  if (agreement_.pending() && agreement_.ready()) end_agreement();
  return is_agreed_;
}

void GroupWrappers::finish(Reducer& wrapper) {
  if (!is_one_of_several(wrapper)) return wrapper.finish_backward();
  end_agreement();
  const Reducer* const first = is_agreed_ ? first_member_ : nullptr;
  if (first != nullptr) first_member_->finish_backward();
  const auto flags = at::empty({static_cast<std::int64_t>(members_.size())}, at::kByte);
  auto* const flag = flags.data_ptr<std::uint8_t>();
  std::ranges::transform(members_, flag, [&](const Reducer* member) {
    return member == first || member->in_backward() ? reached : not_reached;
  });
  {
    const SourceScope scope(group_.communicator(), {.content = Source::Content::wrappers});
    group_.all_reduce(flags, ReduceOp::bor).wait();
  }
  if (std::ranges::none_of(std::span(flag, members_.size()), [](auto f) { return f == reached; }))
    refuse(flags);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] != first && (flag[i] & reached) != 0) members_[i]->finish_backward();
  }
}

void GroupWrappers::refuse(const at::Tensor& reached_by_some) const {
  std::string here, elsewhere;
  const auto* const flag = reached_by_some.const_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if ((flag[i] & reached) == 0) continue;
    auto& list = members_[i]->in_backward() ? here : elsewhere;
    list += concat(list.empty() ? "DistributedDataParallel #" : ", #", members_[i]->number());
  }
  throw invalid_in("backward", group_, "got a backward that reached ", here, " on this rank and ",
                   elsewhere.empty() ? "fewer of them" : elsewhere,
                   " on others, expected one at least that every rank reaches: use wrappers in the "
                   "same order on all ranks");
}

}  // namespace lockstep::detail
