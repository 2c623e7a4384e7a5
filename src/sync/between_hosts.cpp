#include "sync/between_hosts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "averaging/average.h"
#include "comm/backend_communicator.h"
#include "comm/communicator.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "sync/bucket_layout.h"

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
// All ranks of a host must issue the same intra-node collectives. The exchanges of their shards may
// have different numbers of stages, and one may reject values that another accepts. So in each
// stage the ranks of a host take the maximum of their Status. The host continues while one of its
// ranks does. All hosts divide a bucket in the same way, and the leaders of a shard run the same
// stages. So all hosts run the same number of stages.

namespace {

/// Completes when two operations are complete.
class CombinedRequest final : public Request {
 public:
  CombinedRequest(Work first, Work second) : first_(std::move(first)), second_(std::move(second)) {}

  bool complete() const override { return first_.complete() && second_.complete(); }
  bool test() override {
    const bool first = first_.ready();
    return second_.ready() && first;
  }
  void wait() override {
    first_.wait();
    second_.wait();
  }
  // The destructors of both Works abandon them.
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
      : strategy_(strategy.text()),
        hosts_(hosts),
        shards_(shards_of(bucket, hosts.topology)),
        shard_values_(at::empty({0}, bucket.values().options())) {
    status_ = hosts.intra_node.empty({1}, at::kByte);
    for (const auto& slice : bucket.slices()) {
      if (!is_in_shard(slice)) other_residuals_.push_back(slice.name + ".residual");
    }
    if (shards_.own().length == 0) return;
    shard_.emplace(shard_of(bucket));
    shard_values_ = shard_->values();
    inner_ = strategy.exchange(*shard_);
  }

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    add_loaded_residuals(bucket);
    co_await hosts_.intra_node.reduce_scatter(shard_values_, bucket.values(), shards_.counts());
    // Scales gradients to the host's part of the mean over all ranks, parameters to the host's
    // mean.
    const bool are_parameters = update_step_ == step;
    const double ranks =
        are_parameters ? hosts_.topology.local_size : hosts_.topology.ranks_per_host();
    shard_values_.mul_(1 / ranks);
    ExchangeTask inner;
    if (inner_ != nullptr) inner = inner_->exchange(step, *shard_, *hosts_.inter_node);
    while (true) {
      auto [collective, status] = advance(inner, group);
      *status_.data_ptr<std::uint8_t>() = static_cast<std::uint8_t>(status);
      auto agreement = hosts_.intra_node.all_reduce(status_, ReduceOp::max);
      co_await Work(std::make_shared<CombinedRequest>(std::move(collective), std::move(agreement)));
      const auto agreed = Status{*status_.const_data_ptr<std::uint8_t>()};
      if (agreed == Status::finished) break;
      if (agreed == Status::continues) continue;
      // The values that were refused are sums over the ranks of a host.
      const auto own = at::full({1}, first_not_finite(bucket), at::kLong);
      const auto all = at::empty({group.size()}, at::kLong);
      co_await group.host().all_gather(all, own);
      refuse_not_finite(bucket, all, group);
      const auto& host = hosts_.intra_node;
      const auto own_error = host.empty({max_error_length}, at::kChar).zero_();
      const auto errors = host.empty({max_error_length * host.size()}, at::kChar);
      error_.copy(static_cast<char*>(own_error.data_ptr()), max_error_length - 1);
      error_.clear();
      co_await host.all_gather(errors, own_error);
      throw_error(errors);
    }
    co_await hosts_.intra_node.all_gather(bucket.values(), shard_values_, shards_.counts());
  }

  void before_update(std::int64_t step, const Bucket&) override {
    update_step_ = step;
    if (inner_ != nullptr) inner_->before_update(step, *shard_);
  }

  State state() const override {
    State state = inner_ != nullptr ? inner_->state() : State();
    for (const auto& [name, residual] : loaded_residuals_) state.emplace(name, residual);
    return state;
  }

  void load(const State& state) override {
    if (inner_ != nullptr) inner_->load(state);
    loaded_residuals_.clear();
    for (const auto& name : other_residuals_) {
      const auto found = state.find(name);
      if (found != state.end()) loaded_residuals_.emplace(name, found->second.clone());
    }
  }

 private:
  /// Status of a shard's exchange. A host's status is the maximum over its ranks.
  enum class Status : std::uint8_t { finished, continues, failed };

  static constexpr std::int64_t max_error_length = 1024;

  static hierarchical::Shards shards_of(const Bucket& bucket,
                                        const hierarchical::HostTopology& topology) {
    std::vector<std::size_t> offsets;
    for (const auto& slice : bucket.slices()) offsets.push_back(slice.offset);
    return hierarchical::Shards::at_offsets(
        topology, offsets, static_cast<std::size_t>(bucket.values().numel()), bucket.index());
  }

  /// Whether the parameter is in the shard that this rank leads.
  bool is_in_shard(const Bucket::Slice& slice) const {
    const auto& [begin, length] = shards_.own();
    return slice.offset >= begin && slice.offset < begin + length;
  }

  Bucket shard_of(const Bucket& bucket) const {
    const auto& [begin, length] = shards_.own();
    std::vector<Bucket::Slice> slices;
    for (const auto& slice : bucket.slices()) {
      if (!is_in_shard(slice)) continue;
      slices.push_back(
          {.name = slice.name, .parameter = slice.parameter, .offset = slice.offset - begin});
    }
    return {bucket.index(), length, bucket.values().scalar_type(), std::move(slices),
            *hosts_.inter_node};
  }

  /// Adds loaded residuals to this rank's gradients, for parameters whose shard leader is another
  /// rank of this host. The scale undoes the division after the reduce-scatter.
  void add_loaded_residuals(Bucket& bucket) {
    if (loaded_residuals_.empty()) return;
    for (const auto& slice : bucket.slices()) {
      const auto found = loaded_residuals_.find(slice.name + ".residual");
      if (found == loaded_residuals_.end() || found->second.sizes() != slice.values.sizes())
        continue;
      slice.values.add_(found->second, hosts_.topology.ranks_per_host());
    }
    loaded_residuals_.clear();
  }

  /// The next collective of this rank's shard, if any, and the status after it.
  std::pair<Work, Status> advance(ExchangeTask& inner, const Group& group) {
    if (!hosts_.inter_node) return {};
    const SourceScope of_bucket(hosts_.inter_node->communicator(), group.communicator().source());
    try {
      auto collective = inner.advance();
      const bool continues = collective.pending();
      return {std::move(collective), continues ? Status::continues : Status::finished};
    } catch (const InvalidArgument& error) {
      error_ = error.what();
      return {Work(), Status::failed};
    }
  }

  /// 1 + the index of this rank's first slice that is not finite, or 0.
  static std::int64_t first_not_finite(const Bucket& bucket) {
    const auto slices = bucket.slices();
    const auto found = std::ranges::find_if(
        slices, [](const Bucket::Slice& slice) { return !is_finite(slice.values); });
    return found == slices.end() ? 0 : 1 + (found - slices.begin());
  }

  /// Throws the error of the first rank that has such a slice. Returns if no rank has one.
  void refuse_not_finite(const Bucket& bucket, const at::Tensor& of_ranks,
                         const Group& group) const {
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto found = of_ranks.const_data_ptr<std::int64_t>()[rank];
      if (found == 0) continue;
      const auto& slice = bucket.slices()[static_cast<std::size_t>(found - 1)];
      averaging::refuse_not_finite(strategy_, concat("parameter ", slice.name), rank,
                                   group.communicator());
    }
  }

  [[noreturn]] static void throw_error(const at::Tensor& errors) {
    std::string first;
    for (std::int64_t begin = 0; begin < errors.numel() && first.empty();
         begin += max_error_length) {
      first = static_cast<const char*>(errors.const_data_ptr()) + begin;
    }
    throw InvalidArgument(concat("between hosts, where rank is the index of a host: ", first));
  }

  std::string strategy_;
  HostGroups hosts_;
  hierarchical::Shards shards_;  ///< of the bucket
  at::Tensor shard_values_;      ///< values of this rank's shard, maybe empty
  std::optional<Bucket> shard_;
  std::unique_ptr<Exchange> inner_;           ///< the shard's exchange between hosts
  std::vector<std::string> other_residuals_;  ///< names of the residuals that other ranks keep
  std::int64_t update_step_ = -1;             ///< step of the last before_update()
  State loaded_residuals_;                    ///< loaded values of other_residuals_
  at::Tensor status_;
  std::string error_;  ///< message of this rank's exchange, if it has failed
};

}  // namespace

std::unique_ptr<Exchange> between_hosts(const Strategy& strategy, const Bucket& bucket,
                                        const HostGroups& hosts) {
  return std::make_unique<BetweenHosts>(strategy, bucket, hosts);
}

}  // namespace lockstep::detail
