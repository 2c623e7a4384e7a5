#include "lockstep/uneven_inputs.h"

#include <cstdint>
#include <exception>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

NextTurn::NextTurn(Group group, ReduceOp op)
    : group_(group.host()), op_(op), flag_(group_.empty({1}, at::kByte)) {}

NextTurn::~NextTurn() {
  try {
    work_.wait();
  } catch (const std::exception&) {
    // The world has failed; the group's next call raises the cause.
  }
}

void NextTurn::ask(bool have_batch) {
  *flag_.mutable_data_ptr<std::uint8_t>() = have_batch ? 1 : 0;
  const SourceScope scope(group_.communicator(), {.content = Source::Content::uneven_inputs});
  work_ = group_.all_reduce(flag_, op_);
}

bool NextTurn::answer() {
  work_.wait();
  return *flag_.const_data_ptr<std::uint8_t>() != 0;
}

}  // namespace lockstep::detail
