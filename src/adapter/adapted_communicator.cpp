#include "adapter/adapted_communicator.h"

#include <algorithm>
#include <cstring>

#include "comm/announcement.h"
#include "comm/cost/placement.h"
#include "comm/private_memory.h"
#include "comm/request.h"
#include "comm/split.h"
#include "core/log.h"
#include "core/numeric/digest.h"
#include "core/system/denormals_guard.h"
#include "core/text.h"
#include "core/version_tag.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::adapter {
namespace {

using detail::concat;

/// The Request of a C10dRequest. Keeps the group and its threads alive.
class C10dRequestHandle final : public detail::Request {
 public:
  C10dRequestHandle(std::shared_ptr<AdaptedCommunicator> group,
                    std::shared_ptr<C10dRequest> request)
      : group_(std::move(group)), request_(std::move(request)) {}

  bool test() override {
    const RankContext::Use use(context());
    if (!ended() && !context().failed()) return false;
    finish();
    return true;
  }

  bool complete() const override {
    return context().look([&] { return request_->complete(); });
  }

  void wait() override {
    const RankContext::Use use(context());
    const auto limit = detail::wait_limit(request_->operation(), context().timeout());
    if (!context().await(limit, [&] { return request_->ended() || context().failed(); })) {
      context().fail({.kind = detail::Failure::Kind::timeout,
                      .rank = detail::lowest(missing()),
                      .text = concat(request_->operation().label(), " waited ",
                                     limit.count() / 1000.0, " s for ", missing_text())});
    }
    finish();
  }

  void abandon() noexcept override {
    if (context().in_child() || ended()) return;
    group_->fail(concat(request_->operation().label(),
                        " was abandoned: an exception left the scope of its Work"));
    wait_for_buffers();
  }

  std::vector<int> missing() const override {
    const auto rank = context().look([&] { return request_->awaited(); });
    return rank ? std::vector{*rank} : std::vector<int>();
  }

 private:
  RankContext& context() const { return group_->context(); }
  bool ended() const {
    return context().look([&] { return request_->ended(); });
  }
  /// Waits until the request's thread does not use the caller's buffers any more.
  void wait_for_buffers() {
    const auto& operation = request_->operation();
    const bool to_self = operation.is_message() && operation.peer == group_->rank();
    if (to_self && !ended()) request_->end(false);  // no thread runs it
    context().await([&] { return request_->ended(); });
    worked_ = request_->worked();
  }
  void finish() {
    wait_for_buffers();
    if (!complete()) {
      context().throw_failure(group_->where(request_->operation().label()));
    }
  }
  std::string missing_text() const {
    const auto ranks = missing();
    return ranks.empty() ? "the operations before it" : detail::rank_list(ranks);
  }

  std::shared_ptr<AdaptedCommunicator> group_;
  std::shared_ptr<C10dRequest> request_;
};

/// The message that all ranks exchange when a world begins.
struct RankInfo {
  detail::VersionTag version;
  std::uint64_t host;
  std::int64_t world;
  std::int64_t flushes_denormals;  ///< 0 or 1
};

/// A c10d::Backend requires that the receiver passes the length of each message, so announcements
/// have no eager data. Each message costs switches between threads, so pieces are large. Note [Why
/// receives are waited for first] in c10d_transport.cpp explains why the algorithm is not the ring.
messages::MessageGroup message_group(std::vector<int> members, int rank, int number) {
  return {.rank = rank,
          .members = std::move(members),
          .number = number,
          .algorithm = messages::Algorithm::direct,
          .eager_bytes = 0,
          .pieces = {.bytes = 4 << 20, .window = 4}};
}

}  // namespace

AdaptedCommunicator::AdaptedCommunicator(std::shared_ptr<RankContext> context,
                                         std::vector<int> members, int rank, int number)
    : Communicator(rank, static_cast<int>(members.size())),
      context_(std::move(context)),
      group_(std::make_shared<const messages::MessageGroup>(
          message_group(std::move(members), rank, number))) {}

AdaptedCommunicator::~AdaptedCommunicator() = default;

std::string AdaptedCommunicator::where(std::string_view label) const {
  return concat(label, " (", backend(), ") rank ", rank(), " of ", size());
}

std::shared_ptr<std::byte> AdaptedCommunicator::allocate(std::size_t bytes) {
  return detail::take_private_memory(bytes, backend());
}

void AdaptedCommunicator::fail(std::string_view cause) noexcept {
  fail_with(detail::Failure{.kind = detail::Failure::Kind::error, .rank = world_rank(rank())}.with(
      cause));
}

void AdaptedCommunicator::fail_with(const detail::Failure& failure) noexcept {
  context_->set_failure_raised();
  context_->fail(failure);
}

void AdaptedCommunicator::make_progress() {
  const RankContext::Use use(*context_);
  if (context_->failed()) context_->throw_failure(where("world"));
}

void AdaptedCommunicator::exchange_hosts(const std::string& host,
                                         const c10::intrusive_ptr<c10d::Store>& store) {
  RankInfo own{.version = detail::version_tag(),
               .host = detail::digest(std::as_bytes(std::span(host))),
               .world = 0,
               .flushes_denormals = flushes_denormals() ? 1 : 0};
  if (store && rank() == 0) {
    try {
      own.world = store->add("lockstep/worlds", 1);
    } catch (const std::exception& error) {
      throw CommError(
          concat(where("group_from_backend"), ": the store does not answer: ", error.what()),
          {.operation = "group_from_backend"});
    }
  }
  std::vector<RankInfo> all(static_cast<std::size_t>(size()));
  start({.collective = Collective::all_gather,
         .dtype = DType::u8,
         .input = reinterpret_cast<const std::byte*>(&own),
         .output = reinterpret_cast<std::byte*>(all.data()),
         .count = sizeof own})
      .wait();
  std::vector<std::uint64_t> host_digests;
  for (const auto& info : all) {
    detail::expect_version(where("group_from_backend"), host_digests.size(), info.version,
                           all.front().version);
    detail::expect_same_denormals(where("group_from_backend"), host_digests.size(),
                                  info.flushes_denormals != 0, all.front().flushes_denormals != 0);
    host_digests.push_back(info.host);
  }
  set_hosts(detail::numbered_hosts(host_digests));
  if (store && size() > 1) context_->watch(store, all.front().world);
}

Work AdaptedCommunicator::begin(Operation&& operation) {
  const RankContext::Use use(*context_);
  number(operation);
  if (context_->failed()) context_->throw_failure(where(operation.label()));
  return start(std::move(operation));
}

Work AdaptedCommunicator::start(Operation&& operation) {
  const bool message = operation.is_message();
  const bool alone = message ? operation.peer == rank() : size() == 1;
  const auto request = std::make_shared<C10dRequest>(context_, group_, std::move(operation));
  if (alone && message) {
    begin_self_message(request);
  } else if (alone) {
    request->run();
  } else {
    thread_of(request->operation()).add(request);
  }
  return Work(std::make_shared<C10dRequestHandle>(shared_from_this(), request));
}

RequestThread& AdaptedCommunicator::thread_of(const Operation& operation) {
  std::optional<std::pair<Collective, int>> key;
  if (operation.is_message()) key = {operation.collective, operation.peer};
  auto& thread = threads_[key];
  if (thread == nullptr) thread = std::make_unique<RequestThread>();
  return *thread;
}

void AdaptedCommunicator::begin_self_message(const std::shared_ptr<C10dRequest>& request) {
  const auto& mine = request->operation();
  if (self_messages_.empty() || self_messages_.front()->operation().collective == mine.collective) {
    self_messages_.push_back(request);
    return;
  }
  const auto other = std::move(self_messages_.front());
  self_messages_.pop_front();
  const bool sends = mine.collective == Collective::send;
  const auto& from = sends ? mine : other->operation();
  const auto& to = sends ? other->operation() : mine;
  const auto expected = detail::terms_of(to);
  const auto got = detail::terms_of(from);
  const bool alike = expected == got;
  if (alike && to.count > 0) std::memcpy(to.output, from.input, to.count * size_of(to.dtype));
  if (!alike) {
    const int here = world_rank(rank());
    context_->fail({.kind = detail::Failure::Kind::mismatch,
                    .rank = here,
                    .text = detail::describe_difference(mine.sequence, here, here, expected, got)});
  }
  request->end(alike);
  other->end(alike);
}

std::shared_ptr<Communicator> AdaptedCommunicator::split(int color, int key) {
  const auto part = detail::split_numbered(*this, color, key, context_->last_group());
  context_->set_last_group(static_cast<int>(part.number));
  if (part.ranks.empty()) return nullptr;
  const auto part_communicator =
      std::make_shared<AdaptedCommunicator>(context_, detail::at_ranks(group_->members, part.ranks),
                                            part.rank, static_cast<int>(part.number));
  part_communicator->set_hosts(detail::hosts_of(part.ranks, hosts()));
  return part_communicator;
}

}  // namespace lockstep::adapter
