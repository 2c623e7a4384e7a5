#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/model_view.h"

namespace lockstep::inline v0_2 {

struct MovingAverageOptions {
  /// Weight of the previous average at each update, from 0 to 1.
  double decay = 0.999;
  /// Divides by the sum of the weights, so that early values do not dominate: after n updates the
  /// average is Σ decay^(n−i)·value_i / Σ decay^(n−i). With decay = 1 it is the mean of all values.
  bool bias_correction = false;
  /// Averages floating-point buffers too, such as running statistics. Otherwise the model's own
  /// buffers are used together with the averaged parameters.
  bool average_buffers = false;
};

class MovingAverage;

/// While it exists, a model has averaged parameters; see MovingAverage::apply().
class [[nodiscard]] AppliedAverage {
 public:
  explicit AppliedAverage(MovingAverage& average);
  ~AppliedAverage();
  AppliedAverage(const AppliedAverage&) = delete;
  AppliedAverage& operator=(const AppliedAverage&) = delete;

 private:
  MovingAverage& average_;
};

/// The exponential moving average (EMA) of a model's parameters. The first update copies the
/// parameters; each further one computes
///
///     average = decay · average + (1 − decay) · parameter
///
/// The average often generalises better than the last parameters, so programs evaluate and ship it.
///
///     lockstep::MovingAverage average(*model, {.decay = 0.999});
///     … sgd.step(); average.update();
///     {
///       const auto averaged = average.apply();
///       evaluate(*model);
///     }
///
/// No function communicates: ranks with equal parameters compute equal averages, bit for bit, also
/// with different numbers of threads. Where a strategy lets replicas differ, such as local_sgd,
/// averages differ too, and a checkpoint keeps rank 0's.
/// The average of a float16 or bfloat16 parameter is held in float32. Frozen parameters and several
/// names of one tensor are supported. Must not outlive the model.
class MovingAverage {
 public:
  /// Allocates memory as large as the parameters. Works with wrapped and unwrapped models.
  /// Throws: InvalidArgument for decay outside of 0 to 1, and for a parameter that is not a dense
  /// real tensor.
  explicit MovingAverage(const ModelView& model, MovingAverageOptions options = {});
  MovingAverage(const MovingAverage&) = delete;
  MovingAverage& operator=(const MovingAverage&) = delete;

  /// Call it after each step of the optimizer.
  /// Throws: InvalidArgument while the average is applied.
  void update();
  std::int64_t updates() const { return updates_; }

  /// Replaces the values of the model's parameters by their average until the result goes out of
  /// scope. Exchanges pointers, so it costs no copy, other ranks that share the parameters'
  /// memory keep their values, and the memory of the parameters is unchanged afterwards. Before the
  /// first update() it does nothing. Do not train, wrap or convert the model in that scope. To
  /// write a file for inference, save the model in it.
  /// Throws: InvalidArgument while the average is applied.
  AppliedAverage apply() { return AppliedAverage(*this); }

  /// The state for Checkpoint::extra.
  /// Throws: InvalidArgument while the average is applied, because the model has no parameters to
  /// resume from.
  State state() const;
  /// Throws: InvalidArgument for the state of another model, and while the average is applied.
  /// Nothing is changed then.
  void load_state(const State& state);

 private:
  friend AppliedAverage;
  struct Entry {
    std::string name;
    at::Tensor tensor;   ///< the model's
    at::Tensor average;  ///< at least float32
    at::Tensor trained;  ///< memory of the parameter while the average is applied
  };
  void check_not_applied(const char* operation) const;
  void write_buffers() const;
  void exchange();
  void restore();

  MovingAverageOptions options_;
  std::vector<Entry> entries_;
  std::int64_t updates_ = 0;
  double weight_ = 0;  ///< Σ decay^(n−i), the sum of the weights of all values so far
  bool applied_ = false;
};

}  // namespace lockstep
