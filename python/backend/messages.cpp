#include <ATen/ATen.h>

#include <chrono>

#include "backend/errors.h"
#include "backend/process_group.h"
#include "backend/tensors.h"
#include "core/text.h"

namespace lockstep_torch {

using c10d::OpType;
using std::chrono::milliseconds;

WorkPointer ProcessGroupLockstep::begin_send(const at::Tensor& tensor, int to, std::uint32_t tag,
                                             Progress::Terms terms) {
  const auto work = make_work({OpType::SEND, "lockstep:send"}, {tensor}, {{tensor}});
  const auto memory = tensor.contiguous();
  work->keep(memory);
  return start(work, terms, [&](lockstep::Communicator& world) {
    return world.send(memory.data_ptr(), bytes_of(memory), lockstep::DType::u8, to, tag);
  });
}

WorkPointer ProcessGroupLockstep::begin_recv(Title title, const at::Tensor& tensor, int from,
                                             std::uint32_t tag, Progress::Terms terms) {
  const auto work = make_work(title, {tensor}, {{tensor}});
  const auto memory = contiguous_memory(tensor);
  work->then([memory, tensor] { copy_back(memory, tensor); });
  return start(work, terms, [&](lockstep::Communicator& world) {
    return world.recv(memory.data_ptr(), bytes_of(memory), lockstep::DType::u8, from, tag);
  });
}

ProcessGroupLockstep::Work ProcessGroupLockstep::send(Tensors& tensors, int to, int tag) {
  expect_size("send", "tensors", tensors.size(), 1);
  expect_dense("send", tensors);
  expect_peer("send", to);
  return begin_send(tensors.front(), to, static_cast<std::uint32_t>(tag), {});
}

ProcessGroupLockstep::Work ProcessGroupLockstep::recv(Tensors& tensors, int from, int tag) {
  expect_size("recv", "tensors", tensors.size(), 1);
  expect_dense("recv", tensors);
  expect_peer("recv", from);
  return begin_recv({OpType::RECV, "lockstep:recv"}, tensors.front(), from,
                    static_cast<std::uint32_t>(tag), {});
}

ProcessGroupLockstep::Work ProcessGroupLockstep::recvAnysource(Tensors& tensors, int tag) {
  expect_size("recv", "tensors", tensors.size(), 1);
  expect_dense("recv", tensors);
  return begin_recv({OpType::RECVANYSOURCE, "lockstep:recvAnySource"}, tensors.front(),
                    lockstep::any_source, static_cast<std::uint32_t>(tag), {});
}

ProcessGroupLockstep::Work ProcessGroupLockstep::barrier(const c10d::BarrierOptions& options) {
  const auto work = make_work({OpType::BARRIER, "lockstep:barrier"}, {}, {});
  return start(work, {options.timeout, options.asyncOp},
               [&](lockstep::Communicator& world) { return world.barrier(); });
}

/// Rank 0 receives a message from every rank, and then answers all. A timeout of 0 is no time.
void ProcessGroupLockstep::monitoredBarrier(const c10d::BarrierOptions& options,
                                            bool wait_all_ranks) {
  constexpr std::uint32_t tag = 0x8000'0000;  // c10d's tags are not negative ints
  const auto limit = options.timeout.count() >= 0 ? options.timeout : progress_->timeout();
  Deadline deadline(std::max(limit, milliseconds(1)));
  // Rank 0 names the missing ranks after `limit`, before the group's timeout ends the world on all.
  const Progress::Terms terms{.timeout = limit + progress_->timeout()};
  const Title title{OpType::RECV, "lockstep:monitored_barrier"};
  const auto note = at::zeros({1}, at::kByte);
  if (rank_ != 0) {
    begin_send(note, 0, tag, terms)->wait(milliseconds(0));
    begin_recv(title, at::zeros({1}, at::kByte), 0, tag, terms)->wait(milliseconds(0));
    return;
  }
  std::vector<WorkPointer> arrivals;
  for (int rank = 1; rank < size_; ++rank) {
    arrivals.push_back(begin_recv(title, at::zeros({1}, at::kByte), rank, tag, terms));
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) {
    if (progress_->wait(*arrivals[static_cast<std::size_t>(rank - 1)], deadline)) {
      arrivals[static_cast<std::size_t>(rank - 1)]->wait(milliseconds(0));
      continue;
    }
    missing.push_back(rank);
    if (!wait_all_ranks) break;
  }
  if (!missing.empty()) {
    const auto text = c10::str(
        missing.size() > 1 ? "Ranks " : "Rank ", lockstep::detail::joined(missing, ", "),
        " failed to pass monitoredBarrier in ", limit.count(),
        " ms; find out what they do, or pass a longer timeout (lockstep, rank 0 of ", size_, ")");
    progress_->fail(text);
    fail(text);
  }
  for (int rank = 1; rank < size_; ++rank) {
    begin_send(note, rank, tag, terms)->wait(milliseconds(0));
  }
}

}  // namespace lockstep_torch
