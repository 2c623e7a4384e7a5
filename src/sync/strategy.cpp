#include "lockstep/strategy.h"

#include <utility>
#include <variant>

#include "averaging/parse.h"
#include "core/environment.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/strategies.h"

// The options of strategies that are no averages, and the strategies that select what an average or
// another strategy exchanges at a step.

namespace lockstep::inline v0_2 {

template <>
constexpr auto detail::options_of<PowerSgd> = std::tuple(
    Option{"rank", &PowerSgd::rank, Shown::always}, Option{"feedback", &PowerSgd::error_feedback},
    Option{"warm_start", &PowerSgd::warm_start});
template <>
constexpr auto detail::options_of<LocalSgd> = std::tuple(Option{"period", &LocalSgd::period,
                                                                Shown::always});
template <>
constexpr auto detail::options_of<PostLocalSgd> =
    std::tuple(Option{"start", &PostLocalSgd::start, Shown::always},
               Option{"period", &PostLocalSgd::period, Shown::always});

namespace {

using detail::expect;
using detail::parse_options;

/// Parses partial_update and adasum.
template <class Recipe>
Strategy parse_target(detail::Fields& fields) {
  const bool are_gradients = fields.choice("of", {"parameters", "gradients"}, 0) == 1;
  return detail::checked(
      Recipe{.of = are_gradients ? SyncTarget::gradients : SyncTarget::parameters}, fields);
}

std::string text_of(const char* name, SyncTarget of) {
  return detail::concat(name, of == SyncTarget::gradients ? ":of=gradients" : "");
}

void check_target(const char* name, SyncTarget of) {
  if (of != SyncTarget::none) return;
  throw InvalidArgument(
      detail::concat(name, ": got nothing to exchange, expected parameters or gradients"));
}

/// The strategies that are no averages.
constexpr averaging::Named<Strategy> strategies[] = {
    {"power_sgd", "powersgd", parse_options<PowerSgd, Strategy>},
    {"partial_update", "partialUpdate", parse_target<PartialUpdate>},
    {"local_sgd", "", parse_options<LocalSgd, Strategy>},
    {"post_local_sgd", "", parse_options<PostLocalSgd, Strategy>},
    {"adasum", "", parse_target<Adasum>}};

/// text: "warmup:100:topk:0.01".
Strategy parse_warmup(std::string_view text) {
  const auto first = text.find(':') + 1;
  const auto second = text.find(':', first);
  const auto steps = detail::parse_number<std::int64_t>(text.substr(first, second - first));
  if (second == std::string_view::npos || !steps) {
    detail::throw_invalid("strategy", "got \"", text, "\", expected warmup:STEPS:STRATEGY");
  }
  const Warmup recipe{.strategy = parse_strategy(text.substr(second + 1)), .steps = *steps};
  recipe.check();
  return recipe;
}

class WarmupExchange final : public Exchange {
 public:
  WarmupExchange(std::int64_t steps, std::unique_ptr<Exchange> first,
                 std::unique_ptr<Exchange> then)
      : steps_(steps), first_(std::move(first)), then_(std::move(then)) {}

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    return step < steps_ ? first_->exchange(step, bucket, group)
                         : then_->exchange(step - steps_, bucket, group);
  }
  void before_update(std::int64_t step, const Bucket& bucket) override {
    then_->before_update(step - steps_, bucket);
  }
  bool is_all_reduce() const override { return then_->is_all_reduce(); }
  State state() const override { return then_->state(); }
  void load(const State& state) override { then_->load(state); }

 private:
  std::int64_t steps_;
  std::unique_ptr<Exchange> first_;
  std::unique_ptr<Exchange> then_;
};

}  // namespace

std::string PowerSgd::text() const { return detail::text_of("power_sgd", *this); }

void PowerSgd::check() const {
  constexpr std::int64_t max_rank = 1 << 20;
  expect(rank >= 1 && rank <= max_rank, "power_sgd", "rank", static_cast<double>(rank),
         "1 to 2^20");
}

std::string Adasum::text() const { return text_of("adasum", of); }
void Adasum::check() const { check_target("adasum", of); }

std::string PartialUpdate::text() const { return text_of("partial_update", of); }
void PartialUpdate::check() const { check_target("partial_update", of); }

std::unique_ptr<Exchange> PartialUpdate::exchange(const Bucket& bucket) const {
  check();
  return AllReduce{}.exchange(bucket);
}

SyncTarget PartialUpdate::target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
  return static_cast<std::size_t>(step) % buckets == bucket ? of : SyncTarget::none;
}

std::string LocalSgd::text() const { return detail::text_of("local_sgd", *this); }

void LocalSgd::check() const {
  expect(period >= 1, "local_sgd", "period", static_cast<double>(period), "1 or more");
}

std::unique_ptr<Exchange> LocalSgd::exchange(const Bucket& bucket) const {
  check();
  return AllReduce{}.exchange(bucket);
}

SyncTarget LocalSgd::target(std::int64_t step, std::size_t, std::size_t) const {
  return (step + 1) % period == 0 ? SyncTarget::parameters : SyncTarget::none;
}

std::string PostLocalSgd::text() const { return detail::text_of("post_local_sgd", *this); }

void PostLocalSgd::check() const {
  expect(start >= 0, "post_local_sgd", "start", static_cast<double>(start), "0 or more");
  expect(period >= 1, "post_local_sgd", "period", static_cast<double>(period), "1 or more");
}

std::unique_ptr<Exchange> PostLocalSgd::exchange(const Bucket& bucket) const {
  check();
  return AllReduce{}.exchange(bucket);
}

SyncTarget PostLocalSgd::target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
  if (step < start) return SyncTarget::gradients;
  return LocalSgd{.period = period}.target(step - start, bucket, buckets);
}

std::string Warmup::text() const { return detail::concat("warmup:", steps, ':', strategy.text()); }

void Warmup::check() const {
  expect(steps >= 0, "warmup", "number of steps", static_cast<double>(steps), "0 or more");
}

std::unique_ptr<Exchange> Warmup::exchange(const Bucket& bucket) const {
  check();
  return std::make_unique<WarmupExchange>(steps, AllReduce{}.exchange(bucket),
                                          strategy.exchange(bucket));
}

SyncTarget Warmup::target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
  return step < steps ? SyncTarget::gradients : strategy.target(step - steps, bucket, buckets);
}

Strategy parse_strategy(std::string_view text) {
  // Limits the recursion of nested warm-ups.
  constexpr std::size_t max_length = 4096;
  if (text.size() > max_length) {
    detail::throw_invalid("strategy", "got ", text.size(), " characters, expected at most ",
                          max_length);
  }
  if (text.substr(0, text.find(':')) == "warmup") return parse_warmup(text);
  if (const auto average = averaging::parse(text)) {
    return std::visit([](const auto& recipe) -> Strategy { return recipe; }, *average);
  }
  if (auto parsed = averaging::parse<Strategy>(strategies, text)) return *parsed;
  detail::throw_invalid("strategy", "got \"", text, "\", expected one of: ", averaging::names(),
                        ", ", averaging::names<Strategy>(strategies), ", warmup");
}

}  // namespace lockstep
