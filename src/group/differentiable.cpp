#include "lockstep/differentiable.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <utility>

#include "comm/communicator.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "group/tensors.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The linear functions of all ranks' tensors. Each one's gradient is another of them.
enum class Form : std::uint8_t { sum, mean, all_gather, reduce_scatter, broadcast, reduce };

Form gradient_of(Form form) {
  using enum Form;
  constexpr Form gradients[] = {sum, mean, reduce_scatter, all_gather, reduce, broadcast};
  return gradients[static_cast<std::size_t>(form)];
}

struct Call : torch::CustomClassHolder {
  Call(Form form_, Group group_, int root_) : form(form_), group(std::move(group_)), root(root_) {}

  at::Tensor run(const at::Tensor& tensor) const;
  void check(const at::Tensor& tensor, const char* operation) const;

  Form form;
  Group group;
  int root;
  std::uint16_t number = 0;  ///< of the collective, for the comparison of the ranks' backwards
};

at::Tensor Call::run(const at::Tensor& tensor) const {
  if (form == Form::all_gather || form == Form::reduce_scatter) {
    auto sizes = tensor.sizes().vec();
    auto& first = sizes.front();
    first = form == Form::all_gather ? first * group.size() : first / group.size();
    const auto output = at::empty(sizes, tensor.options());
    const auto input = tensor.contiguous().resolve_neg();
    (form == Form::all_gather ? group.all_gather(output, input)
                              : group.reduce_scatter(output, input))
        .wait();
    return output;
  }
  auto output = tensor.clone(at::MemoryFormat::Contiguous);
  if (form == Form::broadcast) {
    group.broadcast(output, root).wait();
  } else if (form == Form::reduce) {
    group.reduce(output, root).wait();
    if (group.rank() != root) output.zero_();
  } else {
    group.all_reduce(output, form == Form::sum ? ReduceOp::sum : ReduceOp::avg).wait();
  }
  return output;
}

void Call::check(const at::Tensor& tensor, const char* operation) const {
  const auto refuse = [&](const auto&... what) {
    detail::throw_invalid(operation, "rank ", group.rank(), " of ", group.size(), ": got ",
                          what...);
  };
  if (!tensor.defined()) refuse("an undefined tensor, expected a defined one");
  if (tensor.layout() != at::kStrided || !at::isFloatingType(tensor.scalar_type())) {
    refuse("a tensor of layout ", tensor.layout(), " and ", tensor.dtype(),
           ", expected a dense one of a floating point type: call the function of Group of the "
           "same name, which has no gradient");
  }
  if (form == Form::reduce_scatter && (tensor.dim() == 0 || tensor.size(0) % group.size() != 0)) {
    refuse("a tensor of sizes ", tensor.sizes(),
           ", expected a first dimension that is a multiple "
           "of ",
           group.size());
  }
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const at::Tensor& /*always_recorded*/,
                            const c10::intrusive_ptr<Call>& call) {
    auto output = call->run(tensor);
    call->number = static_cast<std::uint16_t>(call->group.communicator().sequence());
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*capsule);
    const SourceScope scope(call.group.communicator(), {.owner = Source::Owner::differentiable,
                                                        .content = Source::Content::backward,
                                                        .number = call.number});
    return {apply(gradients[0], detail::always_recorded(),
                  c10::make_intrusive<Call>(gradient_of(call.form), call.group, call.root)),
            {},
            {}};
  }
};

at::Tensor recorded(Form form, const at::Tensor& tensor, const Group& group, const char* operation,
                    int root = 0) {
  auto call = c10::make_intrusive<Call>(form, group, root);
  call->check(tensor, operation);
  return Differentiable::apply(tensor, detail::always_recorded(), call);
}

}  // namespace
}  // namespace lockstep

namespace lockstep::inline v0_2::differentiable {

at::Tensor all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  constexpr const char* operation = "differentiable::all_reduce";
  if (op != ReduceOp::sum && op != ReduceOp::avg) {
    detail::throw_invalid(operation, "rank ", group.rank(), " of ", group.size(), ": got ",
                          name(op),
                          ", expected sum or avg: call Group::all_reduce, which has no gradient");
  }
  return recorded(op == ReduceOp::sum ? Form::sum : Form::mean, tensor, group, operation);
}

at::Tensor all_gather(const at::Tensor& tensor, const Group& group) {
  const bool is_number = tensor.defined() && tensor.dim() == 0;
  return recorded(Form::all_gather, is_number ? tensor.reshape({1}) : tensor, group,
                  "differentiable::all_gather");
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const Group& group) {
  return recorded(Form::reduce_scatter, tensor, group, "differentiable::reduce_scatter");
}

at::Tensor broadcast(const at::Tensor& tensor, const Group& group, int root) {
  return recorded(Form::broadcast, tensor, group, "differentiable::broadcast", root);
}

at::Tensor reduce(const at::Tensor& tensor, const Group& group, int root) {
  return recorded(Form::reduce, tensor, group, "differentiable::reduce", root);
}

}  // namespace lockstep::differentiable
