#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/exchange.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

/// Whether a quantity is best when it is least, such as a loss, or greatest, such as an accuracy.
enum class Best : std::uint8_t { least, greatest };

struct EarlyStoppingOptions {
  std::int64_t patience = 3;  ///< values in a row without an improvement that end training
  double min_delta = 0;       ///< a value must be better than the best one by more than this
  Best mode = Best::least;
  /// Ends training at once at a value that is NaN or infinite. Otherwise such a value counts as one
  /// without an improvement.
  bool check_finite = true;
};

/// Ends training when a quantity, such as the validation loss, no longer improves.
///
///     lockstep::EarlyStopping stopping({.patience = 3, .min_delta = 1e-4});
///     for (; epoch < 100 && !stopping.stopped(); ++epoch) {
///       … stopping.update(validation_loss, world);
///       folder.save(checkpoint, {.epoch = epoch + 1}, world);
///     }
///
/// The best value and the patience left are part of a checkpoint if it refers to this object as
/// Checkpoint::extra. A run that is resumed after its end has stopped() == true from the start,
/// unless it has more patience than before.
class EarlyStopping {
 public:
  /// Throws: InvalidArgument for patience < 1, and for min_delta that is negative or not finite.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  /// Takes the next value of one process, and returns stopped(). With several ranks use the other
  /// update(): ranks that got different values would stop at different steps.
  bool update(double value);
  /// Takes rank 0's value on every rank, by a broadcast of 8 bytes, so all ranks stop at the same
  /// step. The values of other ranks are ignored.
  /// Ranks: all.
  bool update(double value, const Group& group);

  bool stopped() const { return not_finite_ || waited_ >= options_.patience; }
  /// Whether the last value was the best so far, by more than min_delta.
  bool improved() const { return improved_; }
  std::optional<double> best() const { return best_; }
  /// Values since the best one.
  std::int64_t waited() const { return waited_; }
  /// Whether a value that was NaN or infinite has ended training.
  bool not_finite() const { return not_finite_; }

  State state() const;
  /// Throws: InvalidArgument for a state that state() did not return, and for one with another
  /// mode. Nothing is changed then.
  void load_state(const State& state);

 private:
  EarlyStoppingOptions options_;
  std::optional<double> best_;
  std::int64_t waited_ = 0;
  bool not_finite_ = false;
  bool improved_ = false;
};

}  // namespace lockstep
