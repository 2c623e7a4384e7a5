#include "tests/device/simulation/nccl_double.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/simulation/nccl_api.h"
#include "tests/device/simulation/simulation.h"
#include "tests/ranks.h"

namespace lockstep::simulation {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void check(ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw std::runtime_error(std::string(ncclGetErrorString(result)) + ": " +
                           ncclGetLastError(nullptr));
}

at::Device device_of_rank(int rank) {
  return {simulation::device_type(), static_cast<c10::DeviceIndex>(rank)};
}

/// One rank's communicator, with a stream of its own. Each operation waits for the current stream,
/// and the current stream waits for it.
class Rank {
 public:
  Rank(const ncclUniqueId& id, int size, int rank, bool is_blocking = true)
      : rank_(rank),
        size_(size),
        device_(device_of_rank(rank)),
        on_(device_),
        stream_(c10::impl::VirtualGuardImpl(simulation::device_type()).getNewStream(device_)) {
    ncclConfig_t config;
    config.blocking = is_blocking ? 1 : 0;
    check(ncclCommInitRankConfig(&comm_, size, id, rank, &config));
    auto state = ncclInProgress;
    while (state == ncclInProgress) check(ncclCommGetAsyncError(comm_, &state));
    check(state);
  }
  ~Rank() {
    if (comm_ != nullptr) ncclCommDestroy(comm_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  at::Device device() const { return device_; }
  ncclComm_t comm() const { return comm_; }
  c10::Stream stream() const { return stream_; }
  c10::Stream current() const {
    return c10::impl::VirtualGuardImpl(simulation::device_type()).getStream(device_);
  }

  /// Waits for this rank's device alone. The kernels of others may wait for this rank.
  void settle() const {
    c10::impl::VirtualGuardImpl(simulation::device_type()).synchronizeDevice(device_.index());
  }
  void run(const std::function<ncclResult_t(ncclComm_t, ncclStream_t)>& call) {
    order(current(), stream_);
    check(call(comm_, stream_.native_handle()));
    order(stream_, current());
  }
  void abort() { check(ncclCommAbort(std::exchange(comm_, nullptr))); }

 private:
  static void order(const c10::Stream& first, const c10::Stream& second) {
    c10::Event event(simulation::device_type());
    event.record(first);
    event.block(second);
  }
  int rank_, size_;
  at::Device device_;
  c10::DeviceGuard on_;
  c10::Stream stream_;
  ncclComm_t comm_ = nullptr;
};

/// Runs fn on n ranks, each a thread with a device.
void on_threads(int n, const std::function<void(Rank&)>& fn, bool is_blocking = true) {
  install();
  ncclUniqueId id;
  check(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Rank self(id, n, rank, is_blocking);
        fn(self);
        self.settle();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " of " << n << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

class NcclDouble : public ::testing::Test {
 protected:
  NcclDouble() {
    install();
    synchronize_all();
    take_races();
    take_nccl_faults();
  }
  ~NcclDouble() override {
    set_delay(0);
    nccl_double_fail(0, 0);
    nccl_double_slow_init(0);
    nccl_double_abort_waits_for_device(0);
    nccl_double_set_version(0);
    EXPECT_THAT(take_races(), IsEmpty());
    EXPECT_THAT(take_nccl_faults(), IsEmpty());
  }
};

constexpr std::int64_t length = 1000;

/// The contribution of a rank, on the CPU.
at::Tensor values(int rank, at::ScalarType dtype, std::int64_t count = length) {
  return ((at::arange(count) * (rank + 3)) % 17 - 5).to(dtype);
}

struct Dtype {
  at::ScalarType torch;
  ncclDataType_t nccl;
};
const std::vector<Dtype> dtypes{{at::kFloat, ncclFloat32}, {at::kDouble, ncclFloat64},
                                {at::kHalf, ncclFloat16},  {at::kBFloat16, ncclBfloat16},
                                {at::kInt, ncclInt32},     {at::kLong, ncclInt64},
                                {at::kChar, ncclInt8},     {at::kByte, ncclUint8}};

at::Tensor reduced(int ranks, at::ScalarType dtype, ncclRedOp_t op, std::int64_t count = length) {
  const auto wide = at::isFloatingType(dtype) && dtype != at::kDouble ? at::kFloat : dtype;
  auto sum = values(0, dtype, count).to(wide);
  for (int r = 1; r < ranks; ++r) {
    const auto next = values(r, dtype, count).to(wide);
    if (op == ncclProd) {
      sum = sum * next;
    } else if (op == ncclMax) {
      sum = at::max(sum, next);
    } else if (op == ncclMin) {
      sum = at::min(sum, next);
    } else {
      sum = sum + next;
    }
  }
  if (op == ncclAvg) sum = sum / ranks;
  return sum.to(dtype);
}

class NcclDoubleRanks : public NcclDouble, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclDoubleRanks, ::testing::Values(1, 2, 3, 4, 7));

/// Every collective with every dtype, for any number and kind of ranks.
void check_collectives(Rank& self) {
  const int n = self.size();
  const auto count = static_cast<std::size_t>(length);
  for (const auto& [dtype, type_of_nccl] : dtypes) {
    const auto type = type_of_nccl;
    SCOPED_TRACE(c10::toString(dtype));
    for (const auto op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
      if (op == ncclAvg && !at::isFloatingType(dtype)) continue;
      const auto in = values(self.rank(), dtype).to(self.device());
      auto out = at::empty_like(in);
      self.run([&](ncclComm_t comm, ncclStream_t stream) {
        return ncclAllReduce(in.data_ptr(), out.data_ptr(), count, type, op, comm, stream);
      });
      EXPECT_TRUE(out.cpu().equal(reduced(n, dtype, op))) << "all_reduce, op " << op;
    }
    auto all = at::empty({n, length}, at::TensorOptions(self.device()).dtype(dtype));
    auto own = all[self.rank()];
    own.copy_(values(self.rank(), dtype));
    self.run([&](ncclComm_t comm, ncclStream_t stream) {  // in place
      return ncclAllGather(own.data_ptr(), all.data_ptr(), count, type, comm, stream);
    });
    for (int r = 0; r < n; ++r) EXPECT_TRUE(all[r].cpu().equal(values(r, dtype))) << "all_gather";

    const auto whole = values(self.rank(), dtype, length * n).to(self.device());
    auto part = at::empty({length}, whole.options());
    self.run([&](ncclComm_t comm, ncclStream_t stream) {
      return ncclReduceScatter(whole.data_ptr(), part.data_ptr(), count, type, ncclSum, comm,
                               stream);
    });
    EXPECT_TRUE(part.cpu().equal(
        reduced(n, dtype, ncclSum, length * n).narrow(0, self.rank() * length, length)))
        << "reduce_scatter";

    for (int root = 0; root < n; ++root) {
      auto x = values(self.rank(), dtype).to(self.device());
      self.run([&](ncclComm_t comm, ncclStream_t stream) {
        return ncclBroadcast(x.data_ptr(), x.data_ptr(), count, type, root, comm, stream);
      });
      EXPECT_TRUE(x.cpu().equal(values(root, dtype))) << "broadcast";
    }

    // Every rank sends a message to every rank, itself too.
    auto received = at::empty_like(all);
    const auto sent = values(self.rank(), dtype).to(self.device());
    self.run([&](ncclComm_t comm, ncclStream_t stream) {
      check(ncclGroupStart());
      for (int peer = 0; peer < n; ++peer) {
        check(ncclSend(sent.data_ptr(), count, type, peer, comm, stream));
        check(ncclRecv(received[peer].data_ptr(), count, type, peer, comm, stream));
      }
      return ncclGroupEnd();
    });
    for (int r = 0; r < n; ++r) {
      EXPECT_TRUE(received[r].cpu().equal(values(r, dtype))) << "send and recv";
    }
  }

  float factor = 0.25F * static_cast<float>(self.rank() + 1);
  ncclRedOp_t op{};
  check(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, self.comm()));
  auto x = at::ones({length}, self.device());
  self.run([&](ncclComm_t comm, ncclStream_t stream) {
    return ncclAllReduce(x.data_ptr(), x.data_ptr(), count, ncclFloat32, op, comm, stream);
  });
  check(ncclRedOpDestroy(op, self.comm()));
  EXPECT_TRUE(x.eq(0.125 * n * (n + 1)).all().item<bool>());
}

TEST_P(NcclDoubleRanks, CollectivesEqualTheCpu) {
  set_delay(50);
  on_threads(GetParam(), check_collectives);
}

TEST_P(NcclDoubleRanks, Split) {
  on_threads(GetParam(), [](Rank& self) {
    for (int round = 0; round < 3; ++round) {
      // Halves by parity, in the reverse order of ranks.
      ncclComm_t half = nullptr;
      check(ncclCommSplit(self.comm(), self.rank() % 2, -self.rank(), &half, nullptr));
      int size = 0, rank = 0, device = -1;
      check(ncclCommCount(half, &size));
      check(ncclCommUserRank(half, &rank));
      check(ncclCommCuDevice(half, &device));
      const int members = (self.size() + 1 - self.rank() % 2) / 2;
      EXPECT_EQ(size, members);
      EXPECT_EQ(rank, members - 1 - self.rank() / 2);
      EXPECT_EQ(device, self.rank());
      auto x = at::full({8}, self.rank(), self.device());
      x = x.to(at::kFloat);
      self.run([&](ncclComm_t, ncclStream_t stream) {
        return ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, half, stream);
      });
      double expected = 0;
      for (int r = self.rank() % 2; r < self.size(); r += 2) expected += r;
      EXPECT_EQ(x.sum().item<double>(), 8 * expected);
      check(ncclCommDestroy(half));
      ncclComm_t none = nullptr;
      check(ncclCommSplit(self.comm(), nccl_no_color, 0, &none, nullptr));
      EXPECT_EQ(none, nullptr);
    }
  });
}

TEST_F(NcclDouble, StartsWithoutBlocking) {
  nccl_double_slow_init(5);
  on_threads(
      2,
      [](Rank& self) {
        auto x = at::ones({8}, self.device());
        self.run([&](ncclComm_t comm, ncclStream_t stream) {
          return ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, comm, stream);
        });
        EXPECT_EQ(x.sum().item<double>(), 16);
        auto state = ncclCommFinalize(self.comm());
        while (state == ncclInProgress) check(ncclCommGetAsyncError(self.comm(), &state));
        EXPECT_EQ(state, ncclSuccess);
      },
      false);
}

TEST_F(NcclDouble, RefusesTwoRanksOnOneDevice) {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, nullptr), ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("Duplicate GPU"));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(NcclDouble, ReportsBadArguments) {
  on_threads(2, [](Rank& self) {
    auto* stream = self.stream().native_handle();
    auto* comm = self.comm();
    auto x = at::ones({16}, self.device());
    auto* data = x.data_ptr<float>();
    const auto host = at::ones({16});
    auto* host_data = host.data_ptr();
    const auto foreign = at::ones({16}, device_of_rank(7));
    const auto wrong = static_cast<ncclDataType_t>(99);
    self.settle();
    const auto all_reduce = [&](void* at, ncclDataType_t dtype, ncclStream_t on) {
      return ncclAllReduce(at, at, 8, dtype, ncclSum, comm, on);
    };
    EXPECT_EQ(all_reduce(host_data, ncclFloat32, stream), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(foreign.data_ptr(), ncclFloat32, stream), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(data, wrong, stream), ncclInvalidArgument);
    const auto other =
        c10::impl::VirtualGuardImpl(simulation::device_type()).getNewStream(device_of_rank(7));
    EXPECT_EQ(all_reduce(data, ncclFloat32, other.native_handle()), ncclInvalidArgument);
    EXPECT_EQ(ncclAllGather(data, data + 1, 4, ncclFloat32, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(data, data + 1, 4, ncclFloat32, ncclSum, comm, stream),
              ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(data, data, 4, ncclFloat32, 2, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(data, 4, ncclFloat32, self.rank(), comm, stream), ncclInvalidUsage);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    ncclRedOp_t op{};
    double factor = 2;
    check(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat64, ncclScalarHostImmediate, comm));
    EXPECT_EQ(ncclAllReduce(data, data, 4, ncclFloat32, op, comm, stream), ncclInvalidArgument);
    check(ncclRedOpDestroy(op, comm));
    EXPECT_EQ(ncclAllReduce(data, data, 4, ncclFloat64, op, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(op, comm), ncclInvalidArgument);
  });
  const auto faults = take_nccl_faults();
  for (const char* expected :
       {"memory of the host", "memory of device 7", "no such dtype", "a stream of another device",
        "not in place", "no rank 2", "needs a group", "without ncclGroupStart", "has another dtype",
        "the operator was destroyed", "no operator of this communicator"}) {
    EXPECT_THAT(faults, Contains(HasSubstr(expected)));
  }
}

TEST_F(NcclDouble, ReportsAMismatch) {
  on_threads(3, [](Rank& self) {
    auto x = at::ones({8}, self.device());
    self.run([&](ncclComm_t comm, ncclStream_t stream) {
      return ncclAllReduce(x.data_ptr(), x.data_ptr(), self.rank() == 2 ? 4 : 8, ncclFloat32,
                           ncclSum, comm, stream);
    });
    EXPECT_TRUE(x.isnan().any().item<bool>());
  });
  EXPECT_THAT(take_nccl_faults(),
              Contains(HasSubstr("mismatch: rank 0: AllReduce of 8 elements of dtype 7, op 0; "
                                 "rank 2: AllReduce of 4 elements")));
}

TEST_F(NcclDouble, ReportsAnotherOrderOfCommunicators) {
  on_threads(2, [](Rank& self) {
    ncclComm_t second = nullptr;
    check(ncclCommSplit(self.comm(), 0, self.rank(), &second, nullptr));
    const auto side =
        c10::impl::VirtualGuardImpl(simulation::device_type()).getNewStream(self.device());
    auto x = at::ones({8}, self.device());
    auto y = at::ones({8}, self.device());
    self.settle();
    const auto on_first = [&] {
      check(ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, self.comm(),
                          self.stream().native_handle()));
    };
    const auto on_second = [&] {
      check(ncclAllReduce(y.data_ptr(), y.data_ptr(), 8, ncclFloat32, ncclSum, second,
                          side.native_handle()));
    };
    if (self.rank() == 0) {
      on_first();
      on_second();
    } else {
      on_second();
      on_first();
    }
    self.settle();
    check(ncclCommDestroy(second));
  });
  EXPECT_THAT(take_nccl_faults(), Contains(HasSubstr("order:")));
}

TEST_F(NcclDouble, ReportsCallsAfterTheEnd) {
  on_threads(2, [](Rank& self) {
    auto* comm = self.comm();
    auto x = at::ones({8}, self.device());
    self.settle();
    self.abort();
    EXPECT_EQ(ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, comm,
                            self.stream().native_handle()),
              ncclInvalidUsage);
    EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
  });
  const auto faults = take_nccl_faults();
  EXPECT_THAT(faults, Contains(HasSubstr("after ncclCommAbort")));
  EXPECT_THAT(faults, Contains(HasSubstr("has ended")));
}

TEST_F(NcclDouble, AMissingWaitIsARace) {
  on_threads(2, [](Rank& self) {
    auto x = at::zeros({8}, self.device());
    x.add_(1);
    check(ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, self.comm(),
                        self.stream().native_handle()));
    self.settle();
  });
  EXPECT_THAT(take_races(), Contains(HasSubstr("ncclAllReduce")));
}

TEST_F(NcclDouble, AbortEndsAWait) {
  on_threads(3, [](Rank& self) {
    if (self.rank() == 2) return self.abort();  // it never comes
    auto x = at::ones({8}, self.device());
    self.run([&](ncclComm_t comm, ncclStream_t stream) {
      return ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, comm, stream);
    });
    c10::Event done(simulation::device_type());
    done.record(self.current());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(done.query());
    self.abort();
    done.synchronize();
  });
}

TEST_F(NcclDouble, AbortsOfTwoCommunicatorsAtATime) {
  nccl_double_abort_waits_for_device(1);
  on_threads(2, [](Rank& self) {
    ncclComm_t second = nullptr;
    check(ncclCommSplit(self.comm(), 0, 0, &second, nullptr));
    auto x = at::ones({8}, self.device());
    if (self.rank() == 0) {  // rank 1 comes to neither
      self.run([&](ncclComm_t comm, ncclStream_t stream) {
        return ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, comm, stream);
      });
      check(ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, second, nullptr));
    }
    std::thread other([&] { check(ncclCommAbort(second)); });
    self.abort();
    other.join();
  });
}

TEST_F(NcclDouble, FailsAsynchronously) {
  nccl_double_fail_rank(1, 2, ncclRemoteError);
  on_threads(2, [](Rank& self) {
    auto x = at::ones({8}, self.device());
    for (int i = 0; i < 2; ++i) {
      self.run([&](ncclComm_t comm, ncclStream_t stream) {
        return ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, comm, stream);
      });
    }
    auto state = ncclSuccess;
    check(ncclCommGetAsyncError(self.comm(), &state));
    EXPECT_EQ(state, self.rank() == 1 ? ncclRemoteError : ncclSuccess);
    c10::Event done(simulation::device_type());
    done.record(self.current());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(done.query());
    self.abort();
  });
}

TEST_F(NcclDouble, HasAVersion) {
  int version = 0;
  check(ncclGetVersion(&version));
  EXPECT_GE(version, 21900);
  nccl_double_set_version(21805);
  check(ncclGetVersion(&version));
  EXPECT_EQ(version, 21805);
}

/// The id of rank 0, by the host connection of process ranks.
ncclUniqueId shared_id(Communicator& host) {
  install();
  ncclUniqueId id{};
  if (host.rank() == 0) check(ncclGetUniqueId(&id));
  host.broadcast(&id, sizeof id, DType::u8, 0).wait();
  return id;
}

void expect_no_problems() {
  synchronize_all();
  for (const auto& text : take_races()) throw std::runtime_error(text);
  for (const auto& text : take_nccl_faults()) throw std::runtime_error(text);
  if (::testing::Test::HasFailure()) throw std::runtime_error("a value differs");
}

const testing::ProcessBody collectives("nccl_double_collectives",
                                       [](std::shared_ptr<Communicator> host) {
                                         set_delay(50);
                                         Rank self(shared_id(*host), host->size(), host->rank(),
                                                   false);
                                         check_collectives(self);
                                         ncclComm_t same = nullptr;
                                         check(ncclCommSplit(self.comm(), 0, 0, &same, nullptr));
                                         auto state = ncclInProgress;
                                         while (state == ncclInProgress)
                                           check(ncclCommGetAsyncError(same, &state));
                                         check(ncclCommDestroy(same));
                                         expect_no_problems();
                                       });

const testing::ProcessBody killed("nccl_double_killed", [](std::shared_ptr<Communicator> host) {
  Rank self(shared_id(*host), host->size(), host->rank());
  auto x = at::ones({8}, self.device());
  for (int i = 0; i < 3; ++i) {
    if (i == 2 && self.rank() == 1) ::raise(SIGKILL);
    self.run([&](ncclComm_t comm, ncclStream_t stream) {
      return ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, comm, stream);
    });
    if (i < 2) synchronize_all();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (self.current().query()) throw std::runtime_error("a kernel ended without its peer");
  self.abort();
  expect_no_problems();
});

const testing::ProcessBody hanging("nccl_double_hanging", [](std::shared_ptr<Communicator> host) {
  auto* self = new Rank(shared_id(*host), host->size(), host->rank());  // lives at the exit
  auto x = at::ones({8}, self->device());
  if (self->rank() == 0) {
    check(
        ncclAllReduce(x.data_ptr(), x.data_ptr(), 8, ncclFloat32, ncclSum, self->comm(), nullptr));
  }
});

TEST_F(NcclDouble, ProcessesAreRanksToo) {
  for (const int n : {2, 3}) testing::expect_processes(n, "nccl_double_collectives");
}

TEST_F(NcclDouble, AKilledProcessLeavesAKernelThatAbortEnds) {
  const auto outcomes = testing::run_processes(3, "nccl_double_killed");
  EXPECT_EQ(outcomes[0].code, 0) << outcomes[0].err;
  EXPECT_EQ(outcomes[1].code, SIGKILL);
  EXPECT_EQ(outcomes[2].code, 0) << outcomes[2].err;
}

TEST_F(NcclDouble, AHangingKernelDoesNotKeepAProcess) {
  testing::expect_processes(2, "nccl_double_hanging");
}

}  // namespace
}  // namespace lockstep::simulation
