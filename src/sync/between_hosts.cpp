#include "sync/between_hosts.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/request.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

std::optional<HostGroups> HostGroups::of(const Group& group) {
  auto& all = group.communicator();
  const auto topology = hierarchical::HostTopology::of(all);
  if (topology.has_one_level()) return std::nullopt;
  HostGroups groups{.topology = topology, .intra_node = group.local(), .inter_node = {}};
  if (auto leaders = topology.inter_node(all)) {
    // The leaders send the data, so the group's statistics count their operations.
    leaders->set_observer(all.observer());
    groups.inter_node.emplace(std::move(leaders));
  }
  return groups;
}

// Note [How a strategy runs between hosts]
// The ranks of a host go through the same stages. The exchanges of their shards may end after
// different numbers of stages, and one may refuse values that another takes. So in each stage the
// ranks of a host exchange a byte that says whether their exchange goes on. The host goes on while
// one of its ranks does. All hosts cut a bucket alike, and the leaders of a shard go on alike, so
// hosts do too.

namespace {

/// Two operations that end together.
class Both final : public Request {
 public:
  Both(Work first, Work second) : first_(std::move(first)), second_(std::move(second)) {}

  bool complete() const override { return first_.complete() && second_.complete(); }
  bool test() override {
    const bool first = first_.ready();
    return second_.ready() && first;
  }
  void wait() override {
    first_.wait();
    second_.wait();
  }
  // They do so themselves, as they are destroyed.
  void abandon() noexcept override {}
  void check() override {
    first_.check();
    second_.check();
  }
  std::vector<int> missing() const override {
    return first_.pending() ? first_.missing() : second_.missing();
  }

 private:
  Work first_;
  Work second_;
};

class BetweenHosts final : public Exchange {
 public:
  BetweenHosts(const Strategy& strategy, const Bucket& bucket, const HostGroups& hosts)
      : hosts_(hosts),
        shards_(shards_of(bucket, hosts.topology)),
        mine_(at::empty({0}, bucket.values().options())) {
    word_ = hosts.intra_node.empty({1}, at::kByte);
    for (const auto& slice : bucket.slices()) {
      if (!is_mine(slice)) of_others_.push_back(slice.name + ".residual");
    }
    if (shards_.own().length == 0) return;
    shard_.emplace(shard_of(bucket));
    mine_ = shard_->values();
    inner_ = strategy.exchange(*shard_);
  }

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    take_over(bucket);
    co_await hosts_.intra_node.reduce_scatter(mine_, bucket.values(), shards_.counts());
    // Gradients become the host's part of the mean over all ranks; parameters, the host's mean.
    const bool are_parameters = update_step_ == step;
    const double ranks =
        are_parameters ? hosts_.topology.local_size : hosts_.topology.ranks_per_host();
    mine_.mul_(1 / ranks);
    ExchangeTask inner;
    if (inner_ != nullptr) inner = inner_->exchange(step, *shard_, *hosts_.inter_node);
    while (true) {
      auto [collective, word] = advance(inner, group);
      *word_.data_ptr<std::uint8_t>() = static_cast<std::uint8_t>(word);
      auto agreement = hosts_.intra_node.all_reduce(word_, ReduceOp::max);
      co_await Work(std::make_shared<Both>(std::move(collective), std::move(agreement)));
      const auto agreed = Word{*word_.const_data_ptr<std::uint8_t>()};
      if (agreed == Word::has_ended) break;
      if (agreed == Word::goes_on) continue;
      write_reason();
      co_await hosts_.intra_node.all_gather(reasons_, own_reason_);
      refuse();
    }
    co_await hosts_.intra_node.all_gather(bucket.values(), mine_, shards_.counts());
  }

  void before_update(std::int64_t step, const Bucket&) override {
    update_step_ = step;
    if (inner_ != nullptr) inner_->before_update(step, *shard_);
  }

  State state() const override {
    State state = inner_ != nullptr ? inner_->state() : State();
    for (const auto& [name, residual] : taken_over_) state.emplace(name, residual);
    return state;
  }

  void load(const State& state) override {
    if (inner_ != nullptr) inner_->load(state);
    taken_over_.clear();
    for (const auto& name : of_others_) {
      const auto found = state.find(name);
      if (found != state.end()) taken_over_.emplace(name, found->second.clone());
    }
  }

 private:
  /// A rank's report of its shard to the ranks of its host: the largest one counts.
  enum class Word : std::uint8_t { has_ended, goes_on, refuses };

  static constexpr std::int64_t longest_reason = 1024;

  static hierarchical::Shards shards_of(const Bucket& bucket,
                                        const hierarchical::HostTopology& topology) {
    std::vector<std::size_t> offsets;
    for (const auto& slice : bucket.slices()) offsets.push_back(slice.offset);
    return hierarchical::Shards::at_offsets(
        topology, offsets, static_cast<std::size_t>(bucket.values().numel()), bucket.index());
  }

  /// Whether this rank leads the shard that holds the parameter.
  bool is_mine(const Bucket::Slice& slice) const {
    const auto& [begin, length] = shards_.own();
    return slice.offset >= begin && slice.offset < begin + length;
  }

  Bucket shard_of(const Bucket& bucket) const {
    const auto& [begin, length] = shards_.own();
    std::vector<Bucket::Slice> slices;
    for (const auto& slice : bucket.slices()) {
      if (!is_mine(slice)) continue;
      slices.push_back(
          {.name = slice.name, .parameter = slice.parameter, .offset = slice.offset - begin});
    }
    return {bucket.index(), length, bucket.values().scalar_type(), std::move(slices),
            *hosts_.inter_node};
  }

  /// Adds loaded residuals to this rank's gradient, for parameters whose shard leader is another
  /// rank of this host. Scaled, they weigh as much as if their shard leader had them.
  void take_over(Bucket& bucket) {
    if (taken_over_.empty()) return;
    for (const auto& slice : bucket.slices()) {
      const auto found = taken_over_.find(slice.name + ".residual");
      if (found == taken_over_.end() || found->second.sizes() != slice.values.sizes()) continue;
      slice.values.add_(found->second, hosts_.topology.ranks_per_host());
    }
    taken_over_.clear();
  }

  /// The next collective of this rank's shard, if there is one, and what the rank says of it.
  std::pair<Work, Word> advance(ExchangeTask& inner, const Group& group) {
    if (!hosts_.inter_node) return {};
    const SourceScope of_bucket(hosts_.inter_node->communicator(), group.communicator().source());
    try {
      auto collective = inner.advance();
      const bool goes_on = collective.pending();
      return {std::move(collective), goes_on ? Word::goes_on : Word::has_ended};
    } catch (const InvalidArgument& error) {
      reason_ = error.what();
      return {Work(), Word::refuses};
    }
  }

  void write_reason() {
    if (!reasons_.defined()) {
      reasons_ = hosts_.intra_node.empty({longest_reason * hosts_.intra_node.size()}, at::kChar);
      own_reason_ = hosts_.intra_node.empty({longest_reason}, at::kChar);
    }
    own_reason_.zero_();
    const auto length = std::min<std::size_t>(reason_.size(), longest_reason - 1);
    std::memcpy(own_reason_.data_ptr(), reason_.data(), length);
    reason_.clear();
  }

  [[noreturn]] void refuse() const {
    std::string first;
    for (int rank = 0; rank < hosts_.intra_node.size() && first.empty(); ++rank) {
      first = static_cast<const char*>(reasons_.const_data_ptr()) + longest_reason * rank;
    }
    throw InvalidArgument(concat("between hosts, which count as a rank each: ", first));
  }

  HostGroups hosts_;
  hierarchical::Shards shards_;  ///< of the bucket
  at::Tensor mine_;              ///< the values of this rank's shard, maybe none
  std::optional<Bucket> shard_;
  std::unique_ptr<Exchange> inner_;     ///< of the shard
  std::vector<std::string> of_others_;  ///< residuals that other ranks of this host keep
  std::int64_t update_step_ = -1;       ///< the last step whose parameters it was told to expect
  State taken_over_;                    ///< such ones, from a state of other ranks
  at::Tensor word_;
  at::Tensor own_reason_;
  at::Tensor reasons_;
  std::string reason_;  ///< of this rank's exchange, which has refused
};

}  // namespace

std::unique_ptr<Exchange> between_hosts(const Strategy& strategy, const Bucket& bucket,
                                        const HostGroups& hosts) {
  return std::make_unique<BetweenHosts>(strategy, bucket, hosts);
}

}  // namespace lockstep::detail
