#include <algorithm>
#include <optional>
#include <string>

#include "tests/random_programs/random.h"
#include "tests/random_programs/rules.h"

namespace lockstep::random_programs {
namespace {

using Kind = Synchronisation::Kind;

/// The subject of a program: it decides the units and the paths of its backward passes.
enum class Theme { single, gan, twins, mixed };

Synchronisation random_schedule(Random& random) {
  const auto kind = random.pick(
      {Kind::local_sgd, Kind::post_local_sgd, Kind::partial_parameters, Kind::partial_gradients});
  return {.kind = kind, .period = 1 + random.below(3), .start = random.below(4)};
}

Synchronisation random_lossy(Random& random, FrontEnd front_end) {
  const bool adasum = front_end == FrontEnd::optimizer && random.chance(15);
  return {.kind = Kind::lossy,
          .lossy = adasum ? "adasum"
                          : random.pick<std::string>({"fp16", "bf16", "int8", "topk:ratio=0.3",
                                                      "threshold:value=0.01", "power_sgd",
                                                      "warmup:2:topk:ratio=0.3"})};
}

Unit random_unit(Random& random, FrontEnd front_end, bool alone) {
  Unit unit{.front_end = front_end, .synchronisation = {}, .layers = {}};
  const int layers = 1 + random.below(3);
  for (int i = 0; i < layers; ++i) {
    unit.layers.push_back(
        random.pick({Layer::linear, Layer::linear, Layer::scale, Layer::gain, Layer::transposed,
                     Layer::tied, Layer::two, Layer::wide, Layer::repeated}));
  }
  if (random.chance(40)) {
    unit.buffers = random.pick({Buffers::from_rank0, Buffers::average, Buffers::own});
    if (random.chance(50)) {
      const auto at = random.below(layers + 1);
      unit.layers.insert(unit.layers.begin() + at, random.pick({Layer::norm, Layer::seen}));
    }
  }
  const int parameters = parameter_count(unit);
  if (front_end == FrontEnd::data_parallel) {
    unit.output =
        random.pick({Output::tensor, Output::tensor, Output::tensor, Output::tuple, Output::list,
                     Output::optional, Output::map, Output::ordered_dict, Output::structure});
  }
  unit.updates = random.pick({Updates::sgd, Updates::momentum, Updates::adam});
  if (parameters > 1 && random.chance(15)) unit.frozen = random.below(parameters);
  if (parameters > 1 && random.chance(10)) unit.all_parameters = false;
  unit.bucket_each = random.chance(50);
  unit.check_finite = random.chance(30);
  unit.verify_every = random.pick({1, 1, 0, 2});
  unit.own_group = random.chance(8);
  if (front_end == FrontEnd::optimizer && random.chance(10)) {
    unit.shared = true;
    unit.all_parameters = true;  // as the wrapper demands
  } else if (alone && front_end == FrontEnd::optimizer && random.chance(30)) {
    unit.synchronisation = random_schedule(random);
  } else if (alone && random.chance(15)) {
    unit.synchronisation = random_lossy(random, front_end);
    unit.single_precision = true;
  }
  unit.sharded = front_end == FrontEnd::optimizer && !unit.shared &&
                 unit.synchronisation.kind == Synchronisation::Kind::fp32 && random.chance(30);
  unit.in_parts = unit.sharded && unit.all_parameters && random.chance(50);
  return unit;
}

/// Draws operations for a program, one after the other.
class Generator {
 public:
  Generator(std::uint64_t seed, bool on_device) : random_(seed) {
    program_.seed = seed;
    program_.on_device = on_device;
    program_.ranks = 2 + random_.below(2);
    program_.width = 1 + random_.below(3);
  }

  Program run() {
    do {
      draw_units();
    } while (!Rules(program_).allow_units());
    Rules rules(program_);
    const int length = 4 + random_.below(18);
    for (int tries = 0; count() < length && tries < 40 * length && !rules.ended(); ++tries) {
      append(rules, draw(rules));
    }
    finish(rules);
    return std::move(program_);
  }

 private:
  int count() const { return static_cast<int>(program_.operations.size()); }
  int units() const { return static_cast<int>(program_.units.size()); }
  const Unit& unit(int index) const { return program_.units[static_cast<std::size_t>(index)]; }

  bool append(Rules& rules, const Operation& operation) {
    if (!rules.allow(operation)) return false;
    rules.apply(operation);
    program_.operations.push_back(operation);
    return true;
  }

  void draw_units() {
    using enum FrontEnd;
    program_.units.clear();
    const int dice = random_.below(100);
    theme_ = dice < 66   ? Theme::single
             : dice < 80 ? Theme::gan
             : dice < 92 ? Theme::twins
                         : Theme::mixed;
    const auto add = [this](FrontEnd front_end) {
      auto& unit =
          program_.units.emplace_back(random_unit(random_, front_end, theme_ == Theme::single));
      if (program_.on_device) unit.in_parts = false;
    };
    switch (theme_) {
      case Theme::single:
        return add(random_.pick({data_parallel, optimizer}));
      case Theme::gan:  // the generator, then the discriminator
        add(optimizer);
        return add(optimizer);
      case Theme::twins: {
        const auto front_end = random_.pick({data_parallel, data_parallel, optimizer});
        add(front_end);
        add(front_end);
        if (random_.chance(40)) add(random_.pick({data_parallel, optimizer}));
        return;
      }
      case Theme::mixed:
        add(data_parallel);
        return add(optimizer);
    }
  }

  std::vector<std::vector<int>> draw_paths() {
    const int last = units() - 1;
    const int one = random_.below(units());
    if (theme_ == Theme::single) {
      // Now and then two forwards of one model before one backward.
      return random_.chance(20) ? std::vector<std::vector<int>>{{0}, {0}}
                                : std::vector<std::vector<int>>{{0}};
    }
    switch (random_.below(6)) {
      case 0:
        return {{0, 1}};
      case 1:
        return {{0}, {1}};
      case 2:
        return theme_ == Theme::twins && last == 2 ? std::vector<std::vector<int>>{{2, 0}, {2, 1}}
                                                   : std::vector<std::vector<int>>{{1}, {0, 1}};
      default:
        return {{one}};
    }
  }

  /// Which layers take part on each rank: mostly all.
  std::vector<std::vector<Mask>> draw_layers(bool may_be_none) {
    std::vector<std::vector<Mask>> layers(static_cast<std::size_t>(program_.ranks));
    const bool uneven = random_.chance(35);
    for (auto& of_rank : layers) {
      for (int index = 0; index < units(); ++index) {
        const Mask all = first_bits(static_cast<int>(unit(index).layers.size()));
        Mask mask = all;
        if (uneven) {
          mask = static_cast<Mask>(random_.bits()) & all;
          const bool none = may_be_none && random_.chance(20);
          if (none) mask = 0;
          if (mask == 0 && !none) mask = all;
        }
        of_rank.push_back(mask);
      }
    }
    return layers;
  }

  std::vector<double> draw_weights() {
    std::vector<double> weights;
    for (int rank = 0; rank < program_.ranks; ++rank) {
      weights.push_back(random_.pick({1.0, 2.0, 3.0, 0.5}));
    }
    if (random_.chance(20)) weights.front() = 0;
    return weights;
  }

  Operation draw_backward(const Rules& rules) {
    Backward op{.paths = draw_paths(), .data = random_.bits() % 100'000, .layers = {}};
    const auto passed = units_of(op);
    bool all_data_parallel = true;
    for (const int index : passed) {
      all_data_parallel = all_data_parallel && unit(index).front_end == FrontEnd::data_parallel;
      if (random_.chance(30)) op.local |= 1U << index;
      if (rules.unit(index).behind != 0) op.without_loss = rules.unit(index).behind;
    }
    // A rank's loss may reach no parameter: data-parallel outputs tell.
    op.layers = draw_layers(all_data_parallel);
    if (op.without_loss == 0 && random_.chance(15)) {
      op.without_loss = 1U << random_.below(program_.ranks);
      if (random_.chance(20)) op.without_loss = first_bits(program_.ranks) ^ op.without_loss;
    }
    op.separate = op.paths.size() > 1 && random_.chance(50);
    op.forwards_first = op.separate && random_.chance(50);
    op.reversed = op.forwards_first && random_.chance(50);
    const Mask paths = first_bits(static_cast<int>(op.paths.size()));
    if (random_.chance(30)) op.evaluated = static_cast<Mask>(random_.bits()) & paths;
    if (op.paths.size() == 1 && random_.chance(10)) {
      using enum Collective;
      op.collective = random_.pick({all_reduce, mean, all_gather, reduce_scatter, broadcast});
      op.layers.assign(op.layers.size(), op.layers[0]);
    }
    const bool saves_buffers =
        std::ranges::any_of(passed, [&](int i) { return uses_buffer(unit(i)); });
    op.twice = random_.chance(saves_buffers ? 20 : 6);
    op.update = random_.chance(20);
    const auto& weights = rules.unit(op.paths[0][0]).weights;
    if (op.local == 0 && weights.empty() && random_.chance(15)) op.weights = draw_weights();
    if (op.local == 0 && random_.chance(50)) op.weights = weights;
    if (op.paths.size() > 1 && random_.chance(10)) op.swapped = random_.below(program_.ranks);
    return op;
  }

  Operation draw_set_gradient(int index) {
    using How = SetGradient::How;
    const Mask ranks =
        random_.chance(60) ? first_bits(program_.ranks) : 1U << random_.below(program_.ranks);
    const Mask all = first_bits(parameter_count(unit(index)));
    Mask parameters = static_cast<Mask>(random_.bits()) & all;
    if (parameters == 0 || random_.chance(40)) parameters = all;
    return SetGradient{.unit = index,
                       .how = random_.pick({How::assign, How::compute, How::add, How::poke}),
                       .parameters = parameters,
                       .ranks = ranks,
                       .data = random_.bits() % 100'000};
  }

  Operation draw_evaluation(int index) {
    return Evaluate{
        .unit = index, .data = random_.bits() % 100'000, .with_graph = random_.chance(50)};
  }

  Operation draw_refusal(int index) {
    using What = Refuse::What;
    const auto what =
        random_.pick({What::negative_weight, What::wrapped_twice, What::thawed, What::other_dtype,
                      What::other_layout, What::opaque, What::second_weight, What::listed_twice,
                      What::in_place, What::not_finite});
    const bool of_rank = is_about_a_backward(what);
    const int numbers = of_rank ? program_.ranks : parameter_count(unit(index));
    return Refuse{.unit = index, .what = what, .number = random_.below(numbers)};
  }

  Operation draw(const Rules& rules) {
    const int index = random_.below(units());
    const auto& now = rules.unit(index);
    const bool is_optimizer = unit(index).front_end == FrontEnd::optimizer;
    // Most defects appear when an operation combines local gradients with means.
    if (is_optimizer && now.local && now.holds_mean && random_.chance(15)) {
      return Clip{.unit = index, .norm = random_.pick({0.1, 0.5})};
    }
    if (now.has_checkpoint && random_.chance(10)) return LoadCheckpoint{.unit = index};
    if (now.exchanged && !now.changed && random_.chance(10)) return draw_keep(index);
    int dice = random_.below(103);
    const auto in = [&dice](int share) { return (dice -= share) < 0; };
    if (in(40)) return draw_backward(rules);
    if (in(22)) {
      // A step of gradients that have been stepped with is seldom of interest.
      const bool fresh = now.changed || now.exchanged || now.behind != 0 || random_.chance(20);
      return fresh ? draw_step(rules, index) : draw_backward(rules);
    }
    if (in(10)) {
      using By = ZeroGrad::By;
      return ZeroGrad{.unit = index,
                      .by = unit(index).in_parts
                                ? By::front_end
                                : random_.pick({By::optimizer, By::module, By::front_end}),
                      .set_to_none = random_.chance(70)};
    }
    if (in(4)) return Clip{.unit = index, .norm = random_.pick({0.1, 0.5, 2.0})};
    if (in(5)) return draw_set_gradient(index);
    if (in(3)) {
      return Freeze{.unit = index,
                    .parameter = random_.below(parameter_count(unit(index))),
                    .frozen = random_.chance(50)};
    }
    if (in(3)) return Save{.unit = index};
    if (in(3)) return Load{.unit = index};
    if (in(2)) return Convert{.unit = index};
    if (in(1)) return SaveCheckpoint{.unit = index};
    if (in(1)) return LoadCheckpoint{.unit = index};
    if (in(1)) return Synchronize{.unit = index};
    if (in(2)) return Rewrap{.unit = index};
    if (in(1)) return draw_evaluation(index);
    if (in(2)) return draw_weighing(rules, index);
    return draw_refusal(index);
  }

  Operation draw_keep(int index) {
    using enum Keep::How;
    const Mask all = first_bits(parameter_count(unit(index)));
    return Keep{.unit = index,
                .how = random_.pick({handle, handle, detached, view}),
                .parameters = random_.chance(50) ? all : static_cast<Mask>(random_.bits()) & all};
  }

  /// Weights that are set before gradients accumulate; the same ones until the exchange.
  Operation draw_weighing(const Rules& rules, int index) {
    const auto& weights = rules.unit(index).weights;
    return Weigh{.unit = index, .weights = weights.empty() ? draw_weights() : weights};
  }

  Operation draw_step(const Rules& rules, int index) {
    Step op{.unit = index};
    if (rules.unit(index).weights.empty() && rules.unit(index).changed && random_.chance(20))
      op.weights = draw_weights();
    return op;
  }

  /// Every unit takes a last step with fresh gradients: what went wrong before shows in it.
  void finish(Rules& rules) {
    for (int index = 0; index < units(); ++index) append(rules, Step{.unit = index});
    for (int index = 0; index < units(); ++index) {
      append(rules, ZeroGrad{.unit = index, .by = ZeroGrad::By::module, .set_to_none = true});
      append(rules, whole_backward(program_, index));
      append(rules, Step{.unit = index});
    }
  }

  Random random_;
  Theme theme_ = Theme::single;
  Program program_;
};

}  // namespace

Program generate(std::uint64_t seed, bool on_device) { return Generator(seed, on_device).run(); }

}  // namespace lockstep::random_programs
