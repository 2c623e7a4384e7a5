#include "tests/random_programs/collective.h"

#include <torch/torch.h>

namespace lockstep::random_programs {

namespace {

/// A rank's result of a collective over the outputs of all ranks.
at::Tensor combined(Collective collective, const std::vector<at::Tensor>& outputs,
                    std::size_t rank) {
  const auto count = static_cast<std::int64_t>(outputs.size());
  switch (collective) {
    case Collective::none:
      return outputs[rank];
    case Collective::all_reduce:
      return torch::stack(outputs).sum(0);
    case Collective::mean:
      return torch::stack(outputs).mean(0);
    case Collective::all_gather:
      return torch::cat(outputs);
    case Collective::reduce_scatter:
      return torch::stack(outputs).sum(0).chunk(count)[rank];
    case Collective::broadcast:
      return outputs.back() + 0 * outputs[rank];
  }
  return {};
}

}  // namespace

void run_in_one_graph(const Backward& op, const std::vector<std::unique_ptr<Rank>>& ranks) {
  std::vector<at::Tensor> outputs;
  for (auto& rank : ranks) {
    outputs.push_back(rank->before_collective(0, op, rank->own_forward()));
  }
  std::vector<at::Tensor> losses;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    losses.push_back(ranks[rank]->after_collective(0, op, ranks[rank]->own_forward(),
                                                   combined(op.collective, outputs, rank)));
  }
  const auto sum = torch::stack(losses).sum();
  if (op.twice) sum.backward({}, /*retain_graph=*/true);
  sum.backward();
}

}  // namespace lockstep::random_programs
