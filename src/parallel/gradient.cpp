#include "parallel/gradient.h"

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

void refuse(const std::string& name, std::string_view why) {
  throw InvalidArgument(concat("parameter ", name, ": ", why));
}

bool lies_in(const at::Tensor& gradient, const at::Tensor& values) {
  return gradient.is_same(values) ||
         (gradient.defined() && gradient.layout() == at::kStrided &&
          gradient.data_ptr() == values.data_ptr() && gradient.strides() == values.strides());
}

void expect_like(const at::Tensor& gradient, const Bucket::Slice& slice) {
  const auto& values = slice.values;
  if (gradient.layout() == at::kStrided && gradient.scalar_type() == values.scalar_type() &&
      gradient.sizes() == values.sizes()) {
    return;
  }
  refuse(slice.name,
         concat("got a gradient of layout ", gradient.layout(), ", ",
                toString(gradient.scalar_type()), ' ', gradient.sizes(),
                ", expected a dense one of ", toString(values.scalar_type()), ' ', values.sizes()));
}

}  // namespace lockstep::detail
