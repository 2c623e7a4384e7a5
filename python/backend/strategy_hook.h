#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/progress.h"
#include "backend/progress_work.h"
#include "comm/operation.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/strategy.h"

namespace lockstep_torch {

/// A strategy as the communication hook of one DistributedDataParallel, which exchanges the
/// gradients of one bucket a call. The state of the exchanges belongs to parameters: it follows
/// them when DDP distributes them over other buckets. One thread at a time calls exchange().
/// Note [A backward with a strategy] is in strategy_hook.cpp.
class StrategyHook : public std::enable_shared_from_this<StrategyHook> {
 public:
  using Future = c10::ivalue::Future;
  static constexpr const char* operation = "strategy";  ///< of its errors
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

  /// parameters: those of the model with their names. Without any, parameters are numbered from the
  /// model's end for each dtype: "float32[-1]" is the last one of float32.
  /// Throws: std::invalid_argument for a text that is no strategy, or one that exchanges
  /// parameters.
  StrategyHook(const std::string& text, const Parameters& parameters);

  std::string text() const { return strategy_.text(); }
  /// Number of backwards, called between two of them.
  std::int64_t step();

  /// Begins the exchange of a bucket. The Future has the resulting gradients or an error, which all
  /// ranks have; it is complete when the exchanges of all buckets are.
  c10::intrusive_ptr<Future> exchange(const std::shared_ptr<Progress>& progress,
                                      const c10d::GradBucket& bucket);

  /// Copies of this rank's state, by names of parameters.
  /// Throws: std::invalid_argument during a backward.
  lockstep::State state();
  /// Replaces the state. Names that do not fit the model are an error of the next backward.
  /// Throws: std::invalid_argument for a residual with other sizes than its parameter.
  void load(std::int64_t step, const lockstep::State& state);

 private:
  /// Tells whether a parameter's gradient has been set since.
  struct GradientVersion {
    const at::TensorImpl* identity = nullptr;  ///< null for an undefined gradient
    std::uint32_t version = 0;

    static GradientVersion of(const at::Tensor& parameter);
    bool operator==(const GradientVersion&) const = default;
  };

  /// A bucket of DDP with its exchange.
  struct Entry {
    std::optional<lockstep::Bucket> bucket;  ///< in the group's memory
    std::unique_ptr<lockstep::Exchange> exchange;
    std::vector<at::Tensor> residuals;  ///< by slice, undefined for none; of the exchange

    // Of the current backward.
    std::vector<GradientVersion> gradients;  ///< by slice, before DDP sets them
    lockstep::ExchangeTask task;
    WorkPointer work;
    c10::intrusive_ptr<Future> future;
    bool begun = false;
  };

  // strategy_hook.cpp
  void join(const std::shared_ptr<Progress>& progress);
  /// Compares the texts of the strategies of all ranks. Throws: std::invalid_argument on all ranks.
  void expect_same_strategy();
  void leave();
  void expect_own_model(const c10d::GradBucket& bucket) const;
  void continue_backward(const c10d::GradBucket& bucket);
  void end_backward();
  void complete_after_backward();
  bool is_running() const;
  std::size_t position_of(const Entry& entry) const;
  WorkPointer make_work() const;
  void begin(Entry& entry);
  void advance(Entry& entry);
  void wait(Entry& entry);
  void run_slot(std::size_t slot);
  void complete_exchanges();
  void complete_futures();
  void fail(const std::exception_ptr& error);

  // strategy_state.cpp
  Entry& entry_for(const c10d::GradBucket& bucket);
  void number(const std::vector<at::Tensor>& parameters);
  std::unique_ptr<Entry> make_entry(const c10d::GradBucket& bucket);
  void load_carried(Entry& entry);
  void dissolve(std::size_t from);
  void fill(Entry& entry, const at::Tensor& buffer);
  void expect_complete_load();
  void return_unused();

  std::recursive_mutex mutex_;  ///< a callback of a future may call state()
  lockstep::Strategy strategy_;
  bool model_is_known_;  ///< by the caller, or by the first backward
  struct Parameter {
    std::string name;
    at::Tensor tensor;  ///< keeps its address from being used again
  };
  std::unordered_map<const at::TensorImpl*, Parameter> parameters_;
  std::map<at::ScalarType, std::int64_t> numbered_;

  std::shared_ptr<Progress> progress_;
  std::optional<lockstep::Group> group_;
  lockstep::Source source_;

  std::vector<std::unique_ptr<Entry>> entries_;  ///< by DDP's index
  lockstep::State carried_;                      ///< state for exchanges that do not exist yet
  bool loaded_ = false;  ///< carried_ is from load(), and no backward has used it yet

  std::int64_t step_ = 0;
  bool in_backward_ = false;
  bool callback_queued_ = false;
  std::vector<Entry*> backward_;  ///< entries of the current backward, in DDP's order
  std::size_t last_index_ = 0;
  std::exception_ptr error_;     ///< of the current backward
  std::exception_ptr unusable_;  ///< of an incomplete backward, or of strategies that differ
};

}  // namespace lockstep_torch
