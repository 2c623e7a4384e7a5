#include "parallel/without_graph.h"

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

at::Tensor without_graph(const at::Tensor& values, const std::string& parameter) {
  auto mean = values.detach();
  mean.set_requires_grad(true);
  mean.register_hook([parameter](const at::Tensor&) {
    throw InvalidArgument(concat(
        "parameter ", parameter,
        ": a backward reached its averaged gradient, which has no graph even with create_graph: "
        "take what is to be differentiated again from autograd::grad(), which averages nothing, "
        "and average once, by the backward() of the whole loss"));
  });
  return mean;
}

}  // namespace lockstep::detail
