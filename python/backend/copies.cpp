#include <ATen/ATen.h>

#include <cstring>
#include <numeric>

#include "backend/errors.h"
#include "backend/process_group.h"
#include "backend/tensors.h"

// Operations that copy elements: of any dtype, as bytes.

namespace lockstep_torch {

using c10d::OpType;
using lockstep::DType;

ProcessGroupLockstep::Work ProcessGroupLockstep::broadcast(Tensors& tensors,
                                                           const c10d::BroadcastOptions& options) {
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
  if (tensors.size() > 1 || (!root && !memory.is_same(tensor))) {
    work->then([tensors, memory] {
      for (auto one : tensors) {
        if (!one.is_same(memory)) one.copy_(memory);
      }
    });
  }
  progress_->submit(work, {options.timeout, options.asyncOp}, [&](Progress::Scope scope) {
    scope.parts.operations.push_back(scope.world.broadcast(
        memory.data_ptr(), bytes_of(memory), DType::u8, static_cast<int>(options.rootRank)));
  });
  return work;
}

ProcessGroupLockstep::Work ProcessGroupLockstep::begin_all_gather(Title title,
                                                                  const Tensors& outputs,
                                                                  const Tensors& inputs,
                                                                  Progress::Terms terms) {
  const auto work = make_work(title, inputs, {outputs});
  Tensors from;
  Tensors to;
  bool copies = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    from.push_back(inputs[i].contiguous());
    to.push_back(contiguous_memory(outputs[i]));
    work->keep(from.back());
    copies = copies || !to.back().is_same(outputs[i]);
  }
  if (copies) {
    work->then([to, outputs] {
      for (std::size_t i = 0; i < to.size(); ++i) {
        auto output = outputs[i];
        if (!to[i].is_same(output)) output.copy_(to[i]);
      }
    });
  }
  for (const auto& tensor : to) work->keep(tensor);
  progress_->submit(work, terms, [&](Progress::Scope scope) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      scope.parts.operations.push_back(scope.world.all_gather(from[i].data_ptr(), to[i].data_ptr(),
                                                              bytes_of(from[i]), DType::u8));
    }
  });
  return work;
}

/// outputs[i] has, for each rank, that rank's inputs in order.
ProcessGroupLockstep::Work ProcessGroupLockstep::allgather(TensorLists& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& options) {
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
  const auto input = flattened(inputs);
  if (counts[static_cast<std::size_t>(rank_)] != bytes_of(input)) {
    refuse(operation, c10::str("got an input of ", bytes_of(input), " bytes and an output of ",
                               counts[static_cast<std::size_t>(rank_)],
                               " bytes for this rank, expected the same size"));
  }
  const auto bytes = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto memory =
      at::empty({static_cast<std::int64_t>(bytes / input.element_size())}, input.options());
  const auto work = make_work({OpType::ALLGATHER, "lockstep:all_gather"}, inputs, outputs);
  work->keep(input);
  work->then([memory, outputs] {
    for (const auto& list : outputs) unflatten(memory, list);
  });
  progress_->submit(work, {options.timeout, options.asyncOp}, [&](Progress::Scope scope) {
    scope.parts.operations.push_back(
        scope.world.all_gather(input.data_ptr(), memory.data_ptr(), counts, DType::u8));
  });
  return work;
}

/// outputs[rank][i] is that rank's inputs[i].
ProcessGroupLockstep::Work ProcessGroupLockstep::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr auto operation = "all_gather_coalesced";
  expect_dense(operation, inputs);
  if (inputs.empty()) refuse(operation, "got no tensor, expected a non-empty list");
  expect_size(operation, "output lists", outputs.size(), static_cast<std::size_t>(size_));
  for (const auto& list : outputs) {
    expect_size(operation, "output tensors", list.size(), inputs.size());
    expect_dense(operation, list);
    for (std::size_t i = 0; i < list.size(); ++i) expect_alike(operation, {list[i], inputs[i]});
  }
  Tensors from;
  Tensors to;
  for (const auto& input : inputs) {
    from.push_back(input.contiguous());
    to.push_back(at::empty({size_, input.numel()}, input.options()));
  }
  const auto work =
      make_work({OpType::ALLGATHER_COALESCED, "lockstep:all_gather"}, inputs, outputs);
  for (const auto& tensor : from) work->keep(tensor);
  work->then([to, outputs] {
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
      for (std::size_t i = 0; i < to.size(); ++i) {
        auto output = outputs[rank][i];
        output.copy_(to[i][static_cast<std::int64_t>(rank)].view(output.sizes()));
      }
    }
  });
  progress_->submit(work, {options.timeout, options.asyncOp}, [&](Progress::Scope scope) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      scope.parts.operations.push_back(scope.world.all_gather(from[i].data_ptr(), to[i].data_ptr(),
                                                              bytes_of(from[i]), DType::u8));
    }
  });
  return work;
}

ProcessGroupLockstep::Work ProcessGroupLockstep::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr auto operation = "all_gather_into_tensor";
  expect_size(operation, "output tensors", outputs.size(), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_dense(operation, Tensors{inputs[i], outputs[i]});
    expect_elements(operation, outputs[i], inputs[i], size_);
  }
  return begin_all_gather({OpType::_ALLGATHER_BASE, "lockstep:all_gather"}, outputs, inputs,
                          {options.timeout, options.asyncOp});
}

ProcessGroupLockstep::Work ProcessGroupLockstep::gather(TensorLists& outputs, Tensors& inputs,
                                                        const c10d::GatherOptions& options) {
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
  const auto memory = root ? at::empty({size_, input.numel()}, input.options()) : at::Tensor();
  const auto work = make_work({OpType::GATHER, "lockstep:gather"}, inputs, outputs);
  work->keep(input);
  if (root) {
    work->then([memory, outputs] { unflatten(memory.view({-1}), outputs.front()); });
  }
  progress_->submit(work, {options.timeout, options.asyncOp}, [&](Progress::Scope scope) {
    scope.parts.operations.push_back(
        scope.world.gather(input.data_ptr(), root ? memory.data_ptr() : nullptr, bytes_of(input),
                           DType::u8, static_cast<int>(options.rootRank)));
  });
  return work;
}

ProcessGroupLockstep::Work ProcessGroupLockstep::scatter(Tensors& outputs, TensorLists& inputs,
                                                         const c10d::ScatterOptions& options) {
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
    input = flattened(inputs.front());
  }
  auto output = outputs.front();
  const auto memory = contiguous_memory(output);
  const auto work = make_work({OpType::SCATTER, "lockstep:scatter"},
                              root ? inputs.front() : Tensors(), {outputs});
  if (root) work->keep(input);
  work->keep(memory);
  if (!memory.is_same(output)) work->then([memory, output]() mutable { output.copy_(memory); });
  progress_->submit(work, {options.timeout, options.asyncOp}, [&](Progress::Scope scope) {
    scope.parts.operations.push_back(
        scope.world.scatter(root ? input.data_ptr() : nullptr, memory.data_ptr(), bytes_of(memory),
                            DType::u8, static_cast<int>(options.rootRank)));
  });
  return work;
}

namespace {

/// The parts of a tensor along its first dimension; equal parts if there are no splits.
std::vector<at::Tensor> parts_of(const at::Tensor& whole, std::vector<std::int64_t> splits,
                                 int size) {
  const std::int64_t rows = whole.dim() == 0 ? 1 : whole.size(0);
  if (splits.empty()) {
    if (rows % size != 0) {
      refuse("all_to_all", c10::str("got a first dimension of ", rows, ", expected a multiple of ",
                                    size, ", or sizes of the parts"));
    }
    splits.assign(static_cast<std::size_t>(size), rows / size);
  }
  expect_size("all_to_all", "sizes of parts", splits.size(), static_cast<std::size_t>(size));
  const auto sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum != rows) {
    refuse("all_to_all", c10::str("got sizes of parts with the sum ", sum,
                                  ", expected the first dimension, ", rows));
  }
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const auto split : splits) {
    parts.push_back(whole.dim() == 0 ? whole : whole.narrow(0, begin, split));
    begin += split;
  }
  return parts;
}

}  // namespace

ProcessGroupLockstep::Work ProcessGroupLockstep::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
    std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  expect_dense("all_to_all", Tensors{input, output});
  expect_one_dtype("all_to_all", {input, output});
  const Progress::Terms terms{options.timeout, options.asyncOp};
  const auto from = input.contiguous();
  const auto to = contiguous_memory(output);
  const auto inputs = parts_of(from, input_splits, size_);
  const auto outputs = parts_of(to, output_splits, size_);
  const auto work = make_work({OpType::ALLTOALL_BASE, "lockstep:all_to_all"}, {input}, {{output}});
  work->keep(from);
  work->keep(to);
  if (!to.is_same(output)) work->then([to, output]() mutable { output.copy_(to); });
  // Ranks without sizes of parts have equal parts, which is not known of the other ranks.
  const bool equal = output_splits.empty() && input_splits.empty();
  if (!equal || from.data_ptr() == to.data_ptr()) {
    begin_exchange(work, outputs, inputs, terms);
    return work;
  }
  expect_elements("all_to_all", input, output, 1);
  progress_->submit(work, terms, [&](Progress::Scope scope) {
    scope.parts.operations.push_back(
        scope.world.all_to_all(from.data_ptr(), to.data_ptr(),
                               bytes_of(from) / static_cast<std::size_t>(size_), DType::u8));
  });
  return work;
}

ProcessGroupLockstep::Work ProcessGroupLockstep::alltoall(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllToAllOptions& options) {
  expect_size("all_to_all", "input tensors", inputs.size(), static_cast<std::size_t>(size_));
  expect_size("all_to_all", "output tensors", outputs.size(), static_cast<std::size_t>(size_));
  expect_dense("all_to_all", inputs);
  expect_dense("all_to_all", outputs);
  const auto work = make_work({OpType::ALLTOALL, "lockstep:all_to_all"}, inputs, {outputs});
  Tensors from;
  Tensors to;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    from.push_back(inputs[i].contiguous());
    to.push_back(contiguous_memory(outputs[i]));
  }
  work->then([to, outputs] {
    for (std::size_t i = 0; i < to.size(); ++i) {
      auto output = outputs[i];
      if (!to[i].is_same(output)) output.copy_(to[i]);
    }
  });
  begin_exchange(work, to, from, {options.timeout, options.asyncOp});
  return work;
}

/// Parts of any size as messages.
void ProcessGroupLockstep::begin_exchange(const WorkPointer& work, const Tensors& outputs,
                                          const Tensors& inputs, Progress::Terms terms) {
  constexpr auto tag = static_cast<std::uint32_t>(ReservedTag::all_to_all);
  const auto& own_input = inputs[static_cast<std::size_t>(rank_)];
  const auto& own_output = outputs[static_cast<std::size_t>(rank_)];
  if (bytes_of(own_input) != bytes_of(own_output)) {
    refuse("all_to_all", c10::str("got a part of ", bytes_of(own_output),
                                  " bytes from this rank, expected ", bytes_of(own_input)));
  }
  for (const auto& list : {inputs, outputs}) {
    for (const auto& tensor : list) work->keep(tensor);
  }
  progress_->submit(work, terms, [&](Progress::Scope scope) {
    if (bytes_of(own_input) > 0) {
      std::memmove(own_output.data_ptr(), own_input.data_ptr(), bytes_of(own_input));
    }
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const auto& input = inputs[static_cast<std::size_t>(rank)];
      scope.messages.receive(work, outputs[static_cast<std::size_t>(rank)], rank, tag);
      scope.parts.operations.push_back(
          scope.world.send(input.data_ptr(), bytes_of(input), DType::u8, rank, tag));
    }
  });
}

}  // namespace lockstep_torch
