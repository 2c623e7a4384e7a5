#pragma once

#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/group.h"
#include "lockstep/parallel/model_state.h"
#include "lockstep/parallel/options.h"

namespace lockstep {

namespace detail {
class Reducer;
}

/// While it lives, backward() only accumulates gradients on this rank; the next synchronised
/// backward averages the sum. What counts is when backward() runs. Ranks: all alike.
/// Without it a second backward before zero_grad() adds to the mean of the first, and the sum is
/// averaged: exact at full precision, refused by strategies with error feedback, rounded or
/// selected from anew by those without.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<detail::Reducer> reducer);
  ~NoSync();
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<detail::Reducer> reducer_;
};

namespace detail {

/// By which of the two a model is trained.
enum class Door { distributed_data_parallel, distributed_optimizer };

/// One rank's copy of a model, kept equal to the others: what both doors are, whatever the model's
/// type.
class Replica {
 public:
  /// Ranks: all of the group. Throws: InvalidArgument, on every rank; the group stays usable.
  /// Another error, as a shortage of memory on one rank, ends the world.
  Replica(std::shared_ptr<torch::nn::Module> module, const Group& group,
          const DataParallelOptions& options, Door door);

  /// Throws: InvalidArgument when the module's parameters are not those it was wrapped with.
  void check_unchanged() const;
  /// Before a forward that a backward may follow.
  /// Throws: InvalidArgument when check_unchanged() does.
  void begin_forward() const;
  void watch(const at::Tensor& output) const;
  /// Throws: InvalidArgument that says what a forward may return.
  [[noreturn]] void refuse_output(const std::type_info& type) const;
  NoSync no_sync() const { return NoSync(reducer_); }
  Reducer& reducer() const { return *reducer_; }

 private:
  struct Known {
    NamedTensor named;
    at::ScalarType dtype;
    bool trainable;
  };

  std::shared_ptr<torch::nn::Module> module_;
  Group group_;
  const char* where_;
  Source source_;  ///< of this wrapper's collectives
  std::vector<Known> known_;
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace detail

}  // namespace lockstep
