#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>

#include "lockstep/exchange.h"
#include "lockstep/group.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2 {

class DistributedOptimizer;

struct GradScalerOptions {
  double init_scale = 65536;            ///< first factor of the loss
  double growth_factor = 2;             ///< factor of the scale after growth_interval steps
  double backoff_factor = 0.5;          ///< factor of the scale after a skipped step
  std::int64_t growth_interval = 2000;  ///< steps in a row without overflow before the scale grows
  bool enabled = true;                  ///< false: the loss is not scaled, and no step is skipped
};

/// Loss scaling for training in float16, like Python's torch.amp.GradScaler. It multiplies the loss
/// by a factor, so that small gradients do not become zero in float16, and divides the gradients by
/// the same factor. A step whose gradients are infinite or NaN on any rank is skipped on all ranks,
/// and the scale is reduced.
///
///     lockstep::GradScaler scaler(world);
///     …
///     optimizer.zero_grad();
///     at::Tensor loss;
///     {
///       const lockstep::Autocast lower(at::kHalf, world.device().type());
///       loss = cross_entropy(model->forward(data), target);
///     }
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);  // only to clip or read gradients before the step
///     scaler.step(optimizer);
///     scaler.update();
///
/// Call backward() and step() separately: DistributedOptimizer::backward_and_update() does not
/// unscale. Strategies exchange scaled gradients: use fp32, fp16 or bf16. The strategies topk,
/// threshold, int8 and power_sgd do not support infinite gradients, which the scaler causes on
/// purpose, and their residuals keep the scale of their step.
/// The scale and the number of steps since its last change are part of a checkpoint if it refers to
/// this object as Checkpoint::extra. One scaler serves several optimizers.
class GradScaler {
 public:
  /// group: of the wrapper. Gradients must be on its device.
  /// Ranks: the same options on all.
  /// Throws: InvalidArgument for a scale that update() refuses, a growth_factor that is not finite
  /// or below 1, a backoff_factor outside of 0 to 1, and growth_interval < 1.
  explicit GradScaler(Group group, GradScalerOptions options = {});

  /// The loss times the scale, in float32 if the loss is of lower precision.
  at::Tensor scale(const at::Tensor& loss) const;

  /// Divides the gradients by the scale, for clipping or logging before step(), which otherwise
  /// does it. Averages local gradients of a DistributedOptimizer first. Does not wait for the
  /// device. Given the DistributedOptimizer, the change does not count as an edit of the gradients:
  /// step() does not compare all of their elements between ranks.
  /// Ranks: all of the group.
  /// Throws: InvalidArgument for a second call before update(), for an optimizer that has a
  /// parameter twice, and for gradients that are sparse, on another device than the group's, or in
  /// float16, which cannot hold unscaled gradients.
  void unscale_(torch::optim::Optimizer& optimizer);
  void unscale_(DistributedOptimizer& optimizer);

  /// The optimizer's step, unless a gradient of any rank is infinite or NaN. Returns whether it was
  /// taken, the same on every rank. Waits for the device, to read that.
  /// Ranks: all of the group.
  /// Throws: as unscale_() and the optimizer's step(). InvalidArgument for a second call before
  /// update(), and for an optimizer that a DistributedOptimizer has: pass that.
  bool step(torch::optim::Optimizer& optimizer);
  bool step(DistributedOptimizer& optimizer);

  /// Changes the scale for the next iteration. Multiplies it by backoff_factor if a step was
  /// skipped, and by growth_factor after growth_interval iterations without a skipped step. The
  /// scale and its inverse stay normal numbers of float32.
  /// Ranks: all.
  /// Throws: InvalidArgument unless step() or unscale_() was called before.
  void update();
  /// Sets the scale instead. The number of iterations since its last change stays.
  /// Ranks: all, with the same value.
  /// Throws: InvalidArgument unless it and its inverse are positive normal numbers of float32.
  void update(double new_scale);

  /// The current scale; 1 if the scaler is disabled.
  double get_scale() const { return options_.enabled ? static_cast<double>(scale_) : 1; }
  bool enabled() const { return options_.enabled; }

  /// Empty if the scaler is disabled.
  State state() const;
  /// Throws: InvalidArgument for a state that state() did not return. Nothing is changed then.
  void load_state(const State& state);

 private:
  /// State of an optimizer since the last update().
  struct Unscaled {
    at::Tensor found_inf;  ///< 1 if a gradient of any rank is not finite, else 0; on the device
    std::optional<bool> finite{};  ///< the same, once the host has read it
    bool stepped = false;

    bool is_finite();
  };

  /// stepped: the optimizer, or the DistributedOptimizer that has it.
  template <class Stepped>
  bool step_unless_infinite(torch::optim::Optimizer& optimizer, Stepped& stepped);

  Group group_;
  GradScalerOptions options_;
  float scale_;
  std::int64_t growth_tracker_ = 0;  ///< iterations without a skipped step
  std::map<const torch::optim::Optimizer*, Unscaled> unscaled_;
};

}  // namespace lockstep
