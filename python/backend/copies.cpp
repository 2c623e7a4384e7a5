#include <ATen/ATen.h>

#include <numeric>

#include "backend/errors.h"
#include "backend/process_group.h"
#include "backend/tensors.h"

// Operations that copy elements: of any dtype, as bytes.

namespace lockstep_torch {

using c10d::OpType;
using lockstep::Collective;
using lockstep::DType;

ProcessGroupLockstep::Work ProcessGroupLockstep::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) try {
  expect_root("broadcast", options.rootRank);
  expect_dense("broadcast", tensors);
  expect_alike("broadcast", tensors);
  if (options.rootTensor < 0 || options.rootTensor >= static_cast<std::int64_t>(tensors.size())) {
    refuse("broadcast",
           c10::str("got root tensor ", options.rootTensor, ", expected one of ", tensors.size()));
  }
  const auto work = make_work({OpType::BROADCAST, "lockstep:broadcast"}, tensors, {tensors});
  const auto& tensor = tensors[static_cast<std::size_t>(options.rootTensor)];
  const bool root = rank_ == options.rootRank;
  const auto memory = root ? tensor.contiguous() : contiguous_memory(tensor);
  work->keep(memory);
  if (tensors.size() > 1 || !root) {
    work->then([tensors, memory] {
      for (const auto& one : tensors) copy_back(memory, one);
    });
  }
  return start(work, {options.timeout, options.asyncOp}, [&](lockstep::Communicator& world) {
    return world.broadcast(memory.data_ptr(), bytes_of(memory), DType::u8,
                           static_cast<int>(options.rootRank));
  });
} catch (const std::invalid_argument& refusal) {
  decline(Collective::broadcast, refusal);
}

void ProcessGroupLockstep::begin_all_gather(const WorkPointer& work, const Tensors& outputs,
                                            Tensors inputs, Progress::Terms terms) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = apart_from(outputs, i, rank_, inputs[i].contiguous());
    work->keep(inputs[i]);
    work->keep(outputs[i]);
  }
  progress_->submit(work, terms, [&](Progress::Scope scope) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      scope.parts.operations.push_back(scope.world.all_gather(
          inputs[i].data_ptr(), outputs[i].data_ptr(), bytes_of(inputs[i]), DType::u8));
    }
  });
}

/// outputs[i] has, for each rank, that rank's inputs in order.
ProcessGroupLockstep::Work ProcessGroupLockstep::allgather(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) try {
  constexpr auto operation = "all_gather";
  expect_dense(operation, inputs);
  expect_alike(operation, inputs);
  expect_size(operation, "output lists", outputs.size(), inputs.size());
  std::vector<std::size_t> counts(static_cast<std::size_t>(size_));
  for (const auto& list : outputs) {
    expect_size(operation, "output tensors", list.size(), counts.size() * inputs.size());
    expect_dense(operation, list);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (inputs.size() > 1) expect_alike(operation, {list[i], inputs.front()});
      expect_one_dtype(operation, {list[i], inputs.front()});
    }
  }
  // Ranks may have tensors of different sizes; the outputs say which.
  const auto& first = outputs.front();
  for (std::size_t i = 0; i < first.size(); ++i) counts[i / inputs.size()] += bytes_of(first[i]);
  auto input = flattened(inputs);
  if (counts[static_cast<std::size_t>(rank_)] != bytes_of(input)) {
    refuse(operation, c10::str("got an input of ", bytes_of(input), " bytes, expected ",
                               counts[static_cast<std::size_t>(rank_)],
                               " as in its part of the output; pass outputs of the inputs' sizes"));
  }
  const auto memory = memory_of(first);
  input = apart_from(memory, input);
  const auto work = make_work({OpType::ALLGATHER, "lockstep:all_gather"}, inputs, outputs);
  work->keep(input);
  work->then([memory, outputs] {
    for (const auto& list : outputs) unflatten(memory, list);
  });
  return start(work, {options.timeout, options.asyncOp}, [&](lockstep::Communicator& world) {
    return world.all_gather(input.data_ptr(), memory.data_ptr(), counts, DType::u8);
  });
} catch (const std::invalid_argument& refusal) {
  decline(Collective::all_gather, refusal);
}

/// outputs[rank][i] is that rank's inputs[i].
ProcessGroupLockstep::Work ProcessGroupLockstep::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) try {
  constexpr auto operation = "all_gather_coalesced";
  expect_dense(operation, inputs);
  if (inputs.empty()) refuse(operation, "got no tensor, expected a non-empty list");
  expect_size(operation, "output lists", outputs.size(), static_cast<std::size_t>(size_));
  for (const auto& list : outputs) {
    expect_size(operation, "output tensors", list.size(), inputs.size());
    expect_dense(operation, list);
    for (std::size_t i = 0; i < list.size(); ++i) expect_alike(operation, {list[i], inputs[i]});
  }
  Tensors memory;
  for (const auto& input : inputs) {
    memory.push_back(scratch(size_ * input.numel(), input.options()).view({size_, input.numel()}));
  }
  const auto work =
      make_work({OpType::ALLGATHER_COALESCED, "lockstep:all_gather"}, inputs, outputs);
  work->then([memory, outputs] {
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
      for (std::size_t i = 0; i < memory.size(); ++i) {
        auto output = outputs[rank][i];
        output.copy_(memory[i][static_cast<std::int64_t>(rank)].view(output.sizes()));
      }
    }
  });
  begin_all_gather(work, memory, inputs, {options.timeout, options.asyncOp});
  return work;
} catch (const std::invalid_argument& refusal) {
  decline(Collective::all_gather, refusal);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) try {
  constexpr auto operation = "all_gather_into_tensor";
  expect_size(operation, "output tensors", outputs.size(), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_dense(operation, Tensors{inputs[i], outputs[i]});
    expect_elements(operation, outputs[i], inputs[i], size_);
  }
  const auto work = make_work({OpType::_ALLGATHER_BASE, "lockstep:all_gather"}, inputs, {outputs});
  Tensors memory;
  for (const auto& output : outputs) memory.push_back(contiguous_memory(output));
  work->then([memory, outputs] {
    for (std::size_t i = 0; i < memory.size(); ++i) copy_back(memory[i], outputs[i]);
  });
  begin_all_gather(work, memory, inputs, {options.timeout, options.asyncOp});
  return work;
} catch (const std::invalid_argument& refusal) {
  decline(Collective::all_gather, refusal);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::gather(TensorLists& outputs, Tensors& inputs,
                                                        const c10d::GatherOptions& options) try {
  expect_root("gather", options.rootRank);
  expect_size("gather", "input tensors", inputs.size(), 1);
  expect_dense("gather", inputs);
  const bool root = rank_ == options.rootRank;
  expect_size("gather", "output lists", outputs.size(), root ? 1 : 0);
  if (root) {
    expect_size("gather", "output tensors", outputs.front().size(),
                static_cast<std::size_t>(size_));
    expect_dense("gather", outputs.front());
    expect_alike("gather", outputs.front());
    expect_alike("gather", {outputs.front().front(), inputs.front()});
  }
  const auto input = inputs.front().contiguous();
  const auto memory = root ? scratch(size_ * input.numel(), input.options()) : at::Tensor();
  const auto work = make_work({OpType::GATHER, "lockstep:gather"}, inputs, outputs);
  work->keep(input);
  if (root) {
    work->then([memory, outputs] { unflatten(memory, outputs.front()); });
  }
  return start(work, {options.timeout, options.asyncOp}, [&](lockstep::Communicator& world) {
    return world.gather(input.data_ptr(), root ? memory.data_ptr() : nullptr, bytes_of(input),
                        DType::u8, static_cast<int>(options.rootRank));
  });
} catch (const std::invalid_argument& refusal) {
  decline(Collective::gather, refusal);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::scatter(Tensors& outputs, TensorLists& inputs,
                                                         const c10d::ScatterOptions& options) try {
  expect_root("scatter", options.rootRank);
  expect_size("scatter", "output tensors", outputs.size(), 1);
  expect_dense("scatter", outputs);
  const bool root = rank_ == options.rootRank;
  expect_size("scatter", "input lists", inputs.size(), root ? 1 : 0);
  at::Tensor input;
  if (root) {
    expect_size("scatter", "input tensors", inputs.front().size(), static_cast<std::size_t>(size_));
    expect_dense("scatter", inputs.front());
    expect_alike("scatter", inputs.front());
    expect_alike("scatter", {inputs.front().front(), outputs.front()});
    input = apart_from(outputs.front(), flattened(inputs.front()));
  }
  const auto& output = outputs.front();
  const auto memory = contiguous_memory(output);
  const auto work = make_work({OpType::SCATTER, "lockstep:scatter"},
                              root ? inputs.front() : Tensors(), {outputs});
  if (root) work->keep(input);
  work->then([memory, output] { copy_back(memory, output); });
  return start(work, {options.timeout, options.asyncOp}, [&](lockstep::Communicator& world) {
    return world.scatter(root ? input.data_ptr() : nullptr, memory.data_ptr(), bytes_of(memory),
                         DType::u8, static_cast<int>(options.rootRank));
  });
} catch (const std::invalid_argument& refusal) {
  decline(Collective::scatter, refusal);
}

namespace {

/// The bytes of a tensor's parts along its first dimension; of equal parts if there are no splits.
std::vector<std::size_t> bytes_of_parts(const at::Tensor& whole,
                                        const std::vector<std::int64_t>& splits, int size) {
  const std::int64_t rows = whole.dim() == 0 ? 1 : whole.size(0);
  if (splits.empty()) {
    if (rows % size != 0) {
      refuse("all_to_all", c10::str("got a first dimension of ", rows, ", expected a multiple of ",
                                    size, "; or pass the sizes of the parts"));
    }
    return std::vector<std::size_t>(static_cast<std::size_t>(size),
                                    bytes_of(whole) / static_cast<std::size_t>(size));
  }
  expect_size("all_to_all", "sizes of parts", splits.size(), static_cast<std::size_t>(size));
  const auto sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum != rows) {
    refuse("all_to_all", c10::str("got parts of ", sum, " rows in all, expected ", rows,
                                  ", the first dimension"));
  }
  const auto row = rows == 0 ? 0 : bytes_of(whole) / static_cast<std::size_t>(rows);
  std::vector<std::size_t> bytes;
  for (const auto split : splits) {
    if (split < 0)
      refuse("all_to_all", c10::str("got a part of ", split, " rows, expected 0 or more"));
    bytes.push_back(static_cast<std::size_t>(split) * row);
  }
  return bytes;
}

std::vector<std::size_t> bytes_of_each(const std::vector<at::Tensor>& tensors) {
  std::vector<std::size_t> bytes;
  for (const auto& tensor : tensors) bytes.push_back(bytes_of(tensor));
  return bytes;
}

}  // namespace

ProcessGroupLockstep::Work ProcessGroupLockstep::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
    std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) try {
  expect_dense("all_to_all", Tensors{input, output});
  expect_one_dtype("all_to_all", {input, output});
  const auto input_bytes = bytes_of_parts(input, input_splits, size_);
  const auto output_bytes = bytes_of_parts(output, output_splits, size_);
  const auto to = contiguous_memory(output);
  const auto from = apart_from(to, input.contiguous());
  const auto work = make_work({OpType::ALLTOALL_BASE, "lockstep:all_to_all"}, {input}, {{output}});
  work->then([to, output] { copy_back(to, output); });
  begin_all_to_all(work, to, from, output_bytes, input_bytes, {options.timeout, options.asyncOp});
  return work;
} catch (const std::invalid_argument& refusal) {
  decline(Collective::all_to_all, refusal);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) try {
  expect_size("all_to_all", "input tensors", inputs.size(), static_cast<std::size_t>(size_));
  expect_size("all_to_all", "output tensors", outputs.size(), static_cast<std::size_t>(size_));
  expect_dense("all_to_all", inputs);
  expect_dense("all_to_all", outputs);
  expect_one_dtype("all_to_all", inputs);
  expect_one_dtype("all_to_all", {outputs.front(), inputs.front()});
  expect_one_dtype("all_to_all", outputs);
  const auto work = make_work({OpType::ALLTOALL, "lockstep:all_to_all"}, inputs, {outputs});
  const auto to = memory_of(outputs);
  const auto from = apart_from(to, flattened(inputs));
  work->then([to, outputs] { unflatten(to, outputs); });
  begin_all_to_all(work, to, from, bytes_of_each(outputs), bytes_of_each(inputs),
                   {options.timeout, options.asyncOp});
  return work;
} catch (const std::invalid_argument& refusal) {
  decline(Collective::all_to_all, refusal);
}

/// Ranks pass the sizes of their own parts only, so the form with equal parts cannot be used:
/// another rank may have parts of other sizes.
void ProcessGroupLockstep::begin_all_to_all(const WorkPointer& work, const at::Tensor& output,
                                            const at::Tensor& input,
                                            const std::vector<std::size_t>& output_bytes,
                                            const std::vector<std::size_t>& input_bytes,
                                            Progress::Terms terms) {
  work->keep(input);
  work->keep(output);
  start(work, terms, [&](lockstep::Communicator& world) {
    return world.all_to_all(input.data_ptr(), output.data_ptr(), input_bytes, output_bytes,
                            DType::u8);
  });
}

}  // namespace lockstep_torch
