#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <tuple>
#include <vector>

namespace lockstep::testing {

/// Where the ranks of one world, threads of this process, hand one another tensors.
class Mailboxes {
 public:
  /// A tensor on its way: with its sender until the receiver has taken it.
  struct Parcel {
    at::Tensor tensor;
    bool taken = false;
  };
  /// From whom, to whom, tag.
  using Place = std::tuple<int, int, int>;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<Place, std::deque<std::shared_ptr<Parcel>>> parcels;
  std::set<int> closed;  ///< ranks whose backend is gone
};

/// A message of one rank. Like Gloo's it says whether it has ended to who waits only.
class MemoryWork final : public c10d::Work {
 public:
  MemoryWork(std::shared_ptr<Mailboxes> boxes, Mailboxes::Place place, int peer, at::Tensor tensor,
             bool sends);
  ~MemoryWork() override { take_back(); }

  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;

 private:
  bool ended();
  void take_back();

  std::shared_ptr<Mailboxes> boxes_;
  Mailboxes::Place place_;
  int peer_;
  at::Tensor tensor_;
  std::shared_ptr<Mailboxes::Parcel> parcel_;  ///< of a sender
  bool received_ = false;
  bool aborted_ = false;
};

/// The least that a c10d::Backend of one's own must do for lockstep::group_from_backend().
class MemoryBackend final : public c10d::Backend {
 public:
  MemoryBackend(std::shared_ptr<Mailboxes> boxes, int rank, int size)
      : Backend(rank, size), boxes_(std::move(boxes)) {}
  ~MemoryBackend() override { close(); }

  const std::string getBackendName() const override { return "memory"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return c10::make_intrusive<MemoryWork>(boxes_, Mailboxes::Place{getRank(), to, tag}, to,
                                           tensors.at(0), true);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    return c10::make_intrusive<MemoryWork>(boxes_, Mailboxes::Place{from, getRank(), tag}, from,
                                           tensors.at(0), false);
  }

  /// As the end of the process would.
  void close();

 private:
  std::shared_ptr<Mailboxes> boxes_;
};

}  // namespace lockstep::testing
