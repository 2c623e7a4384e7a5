#include "parallel/reducer/step_agreement.h"

#include <cstring>

#include "core/text.h"
#include "lockstep/error.h"
#include "parallel/agree.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// The content of the all_reduce, which takes the maximum of each byte.
struct Message {
  explicit Message(const StepIntent& intent)
      : means(intent.means),
        edited(intent.edited),
        step(intent.step),
        in_backward(intent.in_backward ? place_of(intent) : 0),
        in_step(intent.in_backward ? 0 : place_of(intent)),
        has_followed(intent.has_followed ? 1 : 0),
        has_local(intent.has_local ? 1 : 0),
        has_lost_mean(intent.has_lost_mean ? 1 : 0),
        has_final_mean(intent.has_final_mean ? 1 : 0),
        has_edited_mean(intent.has_edited_mean ? 1 : 0) {}

  static std::uint8_t place_of(const StepIntent& intent) {
    return static_cast<std::uint8_t>(1 + static_cast<int>(intent.product));
  }

  Compared<std::uint64_t> means;
  Compared<std::uint64_t> edited;
  Compared<std::uint32_t> step;
  std::uint8_t in_backward;  ///< 0 for no, else 1 + the product
  std::uint8_t in_step;      ///< the same
  std::uint8_t has_followed;
  std::uint8_t has_local;
  std::uint8_t has_lost_mean;
  std::uint8_t has_final_mean;
  std::uint8_t has_edited_mean;
  std::uint8_t padding = 0;
};
static_assert(sizeof(Message) == 48);

}  // namespace

StepAgreement::StepAgreement(const Group& group)
    : group_(group.host()), bytes_(group_.empty({sizeof(Message)}, at::kByte)) {}

void StepAgreement::begin(const StepIntent& own) {
  const Message message(own);
  step_ = own.step;
  std::memcpy(bytes_.mutable_data_ptr(), &message, sizeof message);
  work_ = group_.all_reduce(bytes_, ReduceOp::max);
}

StepPlan StepAgreement::end() {
  work_.wait();
  Message all({});
  std::memcpy(static_cast<void*>(&all), bytes_.const_data_ptr(), sizeof all);
  if (!all.step.is_equal()) {
    throw InvalidArgument(concat("DistributedOptimizer rank ", group_.rank(), " of ", group_.size(),
                                 ": got ", step_,
                                 " steps so far on this rank, and another number on another rank, "
                                 "expected the same number on all ranks: "
                                 "call step() on all ranks or on none"));
  }
  const auto place = all.in_backward != 0 ? all.in_backward : all.in_step;
  return {.some_in_backward = all.in_backward != 0,
          .some_in_step = all.in_step != 0,
          .some_have_followed = all.has_followed != 0,
          .some_have_local = all.has_local != 0,
          .some_have_lost_mean = all.has_lost_mean != 0,
          .some_have_final_mean = all.has_final_mean != 0,
          .some_have_edited_mean = all.has_edited_mean != 0,
          .product = static_cast<Product>(place - 1),
          .means_alike = all.means.is_equal(),
          .edited_alike = all.edited.is_equal()};
}

}  // namespace lockstep::detail
