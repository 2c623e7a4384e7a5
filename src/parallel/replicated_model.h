#pragma once

#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

#include "comm/source.h"
#include "lockstep/broadcast_parameters.h"
#include "lockstep/data_parallel_options.h"
#include "lockstep/group.h"
#include "parallel/model_state.h"

namespace lockstep::inline v0_2::detail {

class Reducer;

/// A model that all ranks hold, as both front ends use it: checked and made equal at the start, its
/// gradients exchanged by a Reducer.
class ReplicatedModel {
 public:
  /// Ranks: all of the group. Throws: InvalidArgument, on every rank; the group stays usable.
  /// Another error, as a shortage of memory on one rank, ends the world.
  ReplicatedModel(std::shared_ptr<torch::nn::Module> module, const Group& group,
                  const DataParallelOptions& options, Source::Owner front_end);

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

}  // namespace lockstep::detail
