#include "comm/messages/message_communicator.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/cost/cost.h"
#include "comm/flight/flight_recorder.h"
#include "comm/messages/collective_protocol.h"
#include "comm/messages/network.h"
#include "comm/messages/options.h"
#include "core/failure.h"
#include "core/log.h"
#include "core/numeric/digest.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::messages {

void begin(Communicator& world, bool records, bool by_thread) {
  auto& context = dynamic_cast<MessageCommunicator&>(world).context();
  if (records) context.set_recorder(detail::FlightRecorder::create(world));
  // A single rank has no communication to overlap.
  if (by_thread && world.size() > 1) context.start_progress_thread();
  log::debug(detail::concat("rank ", world.rank(), " of ", world.size(), " joined its world over ",
                            world.backend(), "; ",
                            by_thread ? "a thread makes" : "ranks that wait make", " progress"));
}

namespace {

/// The longest input that is sent with its announcement, the same over every network, so that sums
/// have the same bits. It stays below the eager limits of MPI libraries.
std::size_t eager_bytes(int members) {
  constexpr std::size_t most = 2 << 10;
  constexpr std::size_t to_all = 64 << 10;
  return std::min(most, to_all / static_cast<std::size_t>(members));
}

}  // namespace

MessageCommunicator::MessageCommunicator(std::shared_ptr<MessageRankContext> context,
                                         std::vector<int> members, int rank, int number)
    : BackendCommunicator(rank, static_cast<int>(members.size())),
      context_(std::move(context)),
      group_{.rank = rank,
             .members = std::move(members),
             .number = number,
             .algorithm = context_->options().algorithm,
             .eager_bytes = eager_bytes(size()),
             .network = &context_->network()},
      receives_(group_) {
  const auto lock = context_->lock();
  context_->add(*this);
}

MessageCommunicator::~MessageCommunicator() {
  if (context_->in_child()) return;
  const auto lock = context_->lock();
  context_->remove(*this);
}

std::shared_ptr<std::byte> MessageCommunicator::allocate(std::size_t bytes) {
  return detail::take_private_memory(bytes, backend());
}

std::shared_ptr<MessageCommunicator> MessageCommunicator::world(
    std::shared_ptr<MessageRankContext> context) {
  std::vector<int> members(static_cast<std::size_t>(context->size()));
  std::iota(members.begin(), members.end(), 0);
  const int rank = context->network().rank();
  auto made = std::make_shared<MessageCommunicator>(std::move(context), members, rank, 0);
  made->run_unnumbered({.collective = Collective::barrier});
  made->exchange_join_records();
  return made;
}

void MessageCommunicator::exchange_join_records() {
  const auto& options = context_->options();
  const JoinRecord own = join_record_of(
      detail::concat(options.host.empty() ? detail::this_host() : options.host, options.launcher),
      options.algorithm);
  std::vector<JoinRecord> all(static_cast<std::size_t>(size()));
  run_unnumbered({.collective = Collective::all_gather,
                  .dtype = DType::i64,
                  .input = reinterpret_cast<const std::byte*>(&own),
                  .output = reinterpret_cast<std::byte*>(all.data()),
                  .count = sizeof(JoinRecord) / sizeof(std::int64_t)});
  expect_alike(backend(), all);
  std::vector<std::uint64_t> host_ids;
  for (const auto& join_record : all) host_ids.push_back(join_record.host);
  set_placement(detail::numbered_hosts(host_ids));
}

void MessageCommunicator::set_placement(std::vector<int> hosts) {
  group_.placement = Placement::of(hosts);
  group_.pieces = context_->network().pieces(group_.placement.hosts);
  set_hosts(std::move(hosts));
}

void MessageCommunicator::broadcast_from_rank_0(std::span<std::byte> bytes) {
  run_unnumbered({.collective = Collective::broadcast,
                  .dtype = DType::u8,
                  .input = bytes.data(),
                  .output = bytes.data(),
                  .count = bytes.size(),
                  .peer = 0});
}

void MessageCommunicator::run_unnumbered(Operation&& operation) {
  const auto begin = [&] {
    const MessageRankContext::CallGuard guard(*context_);
    return begin_request<CollectiveRequest>(collectives_, std::move(operation));
  };
  begin().wait();
}

template <class Request>
Work MessageCommunicator::begin_request(auto& requests, Operation&& operation) {
  auto request = std::make_shared<Request>(*this, std::move(operation));
  requests.push_back(request);
  context_->attempt([&] {
    if constexpr (std::is_same_v<Request, RecvRequest>) {
      receives_.add(*request);
    } else {
      request->begin();
    }
  });
  context_->poll();
  if (!request->complete()) context_->wake_thread();
  return Work(std::move(request));
}

Work MessageCommunicator::begin(Operation&& operation) {
  const MessageRankContext::CallGuard guard(*context_);
  number(operation);
  if (context_->failed()) context_->throw_failure(where(operation.label()));
  if (operation.collective == Collective::send) {
    return begin_request<SendRequest>(messages_, std::move(operation));
  }
  if (operation.collective == Collective::recv) {
    return begin_request<RecvRequest>(messages_, std::move(operation));
  }
  return begin_request<CollectiveRequest>(collectives_, std::move(operation));
}

void MessageCommunicator::poll() {
  for (const auto& request : collectives_) {
    request->compare();
    if (!request->compared()) break;
  }
  for (const auto& request : collectives_) {
    request->advance();
    if (!request->next_may_begin()) break;
  }
  if (messages_.empty()) return;
  receives_.advance();
  for (const auto& request : messages_) request->advance();
}

std::size_t MessageCommunicator::pending() const {
  return incomplete(collectives_) + incomplete(messages_);
}

void MessageCommunicator::release(std::vector<std::shared_ptr<void>>& complete) {
  // Every poll comes here: it must not visit all pending ones.
  while (!collectives_.empty() && collectives_.front()->complete()) {
    complete.push_back(std::move(collectives_.front()));
    collectives_.pop_front();
  }
  take_complete(messages_, complete);
}

void MessageCommunicator::drop(std::vector<std::shared_ptr<void>>& pending) {
  if (context_->may_use_memory()) return;
  take_all(collectives_, pending);
  take_all(messages_, pending);
}

std::vector<int> MessageCommunicator::first_missing() const {
  const auto first =
      std::ranges::find_if(collectives_, [](const auto& request) { return !request->complete(); });
  return first == collectives_.end() ? std::vector<int>() : (*first)->missing();
}

int MessageCommunicator::last_group() const {
  const auto lock = context_->lock();
  return context_->last_group();
}

std::shared_ptr<Communicator> MessageCommunicator::split(int color, int key) {
  const auto part = detail::split_numbered(*this, color, key, context_->last_group());
  const auto made = this->part(part.ranks, static_cast<int>(part.number));
  if (made == nullptr) return nullptr;
  made->run_unnumbered({.collective = Collective::barrier});
  log::debug(detail::concat(made->where("split"), " joined its group"));
  return made;
}

std::shared_ptr<Communicator> MessageCommunicator::new_group(std::span<const int> members) {
  const std::vector ranks(members.begin(), members.end());
  const auto agreement = part(ranks, agreement_group);
  return part(ranks, detail::agree_on_number(*agreement, context_->last_group()));
}

std::shared_ptr<MessageCommunicator> MessageCommunicator::part(const std::vector<int>& ranks,
                                                               int number) {
  const int most = most_groups(context_->network().last_tag());
  if (number > most) {
    throw CommError(detail::concat(where("split"), ": this network (", backend(), ") has tags for ",
                                   most, " groups, and no more"));
  }
  {
    const auto lock = context_->lock();
    context_->set_last_group(std::max(context_->last_group(), number));
  }
  if (ranks.empty()) return nullptr;
  const auto own = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  auto made = std::make_shared<MessageCommunicator>(
      context_, detail::at_ranks(group_.members, ranks), own, number);
  made->set_placement(detail::numbered_hosts(detail::at_ranks(hosts(), ranks)));
  return made;
}

}  // namespace lockstep::messages
