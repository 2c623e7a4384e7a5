#include "comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/control/gathering.h"
#include "comm/control/joining.h"
#include "comm/cost/placement.h"
#include "comm/messages/transport.h"
#include "comm/mpi/join_record.h"
#include "comm/private_memory.h"
#include "comm/split.h"
#include "core/failure.h"
#include "core/log.h"
#include "core/numeric/digest.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::mpi {
namespace {

control::Settings settings_of(MpiCommunicator& world) {
  const auto& options = world.context().options();
  const auto network = detail::this_host();
  return {.rank = world.rank(),
          .size = world.size(),
          .host = options.host.empty() ? detail::host_name() : options.host,
          .network = detail::digest(std::as_bytes(std::span(network))),
          .interface = options.interface,
          .timeout = options.timeout,
          .heartbeat = options.heartbeat,
          .on_wait = [&world] { world.make_progress(); }};
}

std::vector<control::Member> connect_members(MpiCommunicator& world) {
  const auto settings = settings_of(world);
  std::optional<control::Gathering> gathering;
  control::Offer offer;
  if (world.rank() == 0) {
    try {
      offer = gathering.emplace(settings).offer();
    } catch (const CommError& error) {
      control::set_text(offer.refusal, error.what());  // other ranks wait for the offer
    }
  }
  world.broadcast_from_rank_0(std::as_writable_bytes(std::span(&offer, 1)));
  if (const auto why = control::text_of(offer.refusal); !why.empty()) throw CommError(why);
  if (gathering) return gathering->wait();
  std::vector<control::Member> rank_0;
  rank_0.push_back(control::join(offer, settings));
  return rank_0;
}

}  // namespace

void connect_hosts(MpiCommunicator& world) {
  auto& context = world.context();
  try {
    context.watch(connect_members(world), settings_of(world).host);
  } catch (const CommError& error) {
    context.end_by(detail::failure_of(error));
    throw;
  }
}

// Note [How long a piece is]
// MPI sends a message up to its eager limit at once (over TCP 64 KiB, including its header). For a
// longer message it first sends a request to the receiver. Between hosts, the request and its reply
// queue behind all bytes in transit, and the link is idle meanwhile. At 1 Gbit/s between two
// simulated hosts, 25 MiB took 269 ms in pieces of 64 KiB or more, and 219 ms in pieces of 60 KiB.
// The link alone takes 210 ms. An all_gather of two ranks that sent whole parts used one direction
// of the link after the other if a rank was late: 64 MiB took 557 ms instead of 280 ms.
// Within a host nothing queues, and each message has a cost: four ranks took 20 to 50 % longer with
// such short pieces. If a member is late, MPI buffers the eager messages to it: up to a slice in a
// ring.

namespace {

/// Longest eager input: with its announcement, it stays below the eager limits of MPI libraries.
std::size_t eager_bytes(int members) {
  constexpr std::size_t most = 2 << 10;
  constexpr std::size_t to_all = 64 << 10;
  return std::min(most, to_all / static_cast<std::size_t>(members));
}

messages::Pieces pieces(int hosts) {
  return hosts > 1 ? messages::Pieces{.bytes = 60 << 10, .window = 8, .of_parts = true}
                   : messages::Pieces{.bytes = 512 << 10, .window = 4};
}

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiRankContext> context, std::vector<int> members,
                                 int rank, int number)
    : BackendCommunicator(rank, static_cast<int>(members.size())), context_(std::move(context)) {
  group_ = {.rank = rank,
            .members = std::move(members),
            .number = number,
            .first_number = agreement_group + 1,
            .algorithm = context_->options().algorithm,
            .eager_bytes = eager_bytes(size())};
  receives_.emplace(transport());
  const auto lock = context_->lock();
  context_->add(*this);
}

MpiCommunicator::~MpiCommunicator() {
  if (context_->in_child()) return;
  const auto lock = context_->lock();
  context_->remove(*this);
}

std::shared_ptr<std::byte> MpiCommunicator::allocate(std::size_t bytes) {
  return detail::take_private_memory(bytes, backend());
}

void MpiCommunicator::join() { run_unnumbered({.collective = Collective::barrier}); }

void MpiCommunicator::exchange_join_records(const std::string& host) {
  const JoinRecord own = join_record_of(host, context_->options().algorithm);
  std::vector<JoinRecord> all(static_cast<std::size_t>(size()));
  run_unnumbered({.collective = Collective::all_gather,
                  .dtype = DType::i64,
                  .input = reinterpret_cast<const std::byte*>(&own),
                  .output = reinterpret_cast<std::byte*>(all.data()),
                  .count = sizeof(JoinRecord) / sizeof(std::int64_t)});
  expect_alike(all);
  std::vector<std::uint64_t> host_ids;
  for (const auto& join_record : all) host_ids.push_back(join_record.host);
  set_placement(detail::numbered_hosts(host_ids));
}

void MpiCommunicator::set_placement(std::vector<int> hosts) {
  group_.placement = Placement::of(hosts);
  group_.pieces = pieces(group_.placement.hosts);
  set_hosts(std::move(hosts));
}

void MpiCommunicator::broadcast_from_rank_0(std::span<std::byte> bytes) {
  run_unnumbered({.collective = Collective::broadcast,
                  .dtype = DType::u8,
                  .input = bytes.data(),
                  .output = bytes.data(),
                  .count = bytes.size(),
                  .peer = 0});
}

void MpiCommunicator::run_unnumbered(Operation&& operation) {
  const auto begin = [&] {
    const MpiRankContext::CallGuard guard(*context_);
    return start(std::move(operation));
  };
  begin().wait();
}

template <class Part>
void MpiCommunicator::run(const Part& part) {
  try {
    part();
  } catch (const messages::Mismatch& mismatch) {
    context_->fail_within({.kind = detail::Failure::Kind::mismatch,
                           .rank = mismatch.rank(),
                           .text = mismatch.what()});
  }
}

template <class Request, class Begin>
Work MpiCommunicator::begin_request(std::shared_ptr<Request> request, const Begin& begin) {
  context_->attempt([&] { run([&] { begin(*request); }); });
  context_->poll();
  if (!request->complete()) context_->wake_thread();
  return Work(std::move(request));
}

Work MpiCommunicator::begin(Operation&& operation) {
  const MpiRankContext::CallGuard guard(*context_);
  number(operation);
  if (context_->failed()) context_->throw_failure(where(operation.label()));
  if (operation.collective == Collective::send) {
    sends_.push_back(std::make_shared<SendRequest>(*this, std::move(operation)));
    return begin_request(sends_.back(), [](SendRequest& request) { request.begin(); });
  }
  if (operation.collective == Collective::recv) {
    recvs_.push_back(std::make_shared<RecvRequest>(*this, std::move(operation)));
    return begin_request(recvs_.back(), [](RecvRequest& request) { request.begin(); });
  }
  return start(std::move(operation));
}

Work MpiCommunicator::start(Operation&& operation) {
  collectives_.push_back(std::make_shared<CollectiveRequest>(*this, std::move(operation)));
  return begin_request(collectives_.back(),
                       [](CollectiveRequest& request) { request.protocol().announce(); });
}

void MpiCommunicator::poll() {
  run([this] {
    for (const auto& request : collectives_) {
      request->protocol().compare();
      if (!request->protocol().compared()) break;
    }
    for (const auto& request : collectives_) {
      request->advance();
      if (!request->protocol().next_may_begin()) break;
    }
    for (const auto& request : sends_) request->advance();
    if (recvs_.empty()) return;
    receives_->advance();
    for (const auto& request : recvs_) request->advance();
  });
}

std::size_t MpiCommunicator::pending() const {
  const auto incomplete = [](const auto& request) { return !request->complete(); };
  return static_cast<std::size_t>(std::ranges::count_if(collectives_, incomplete) +
                                  std::ranges::count_if(sends_, incomplete) +
                                  std::ranges::count_if(recvs_, incomplete));
}

void MpiCommunicator::release(std::vector<std::shared_ptr<void>>& complete) {
  while (!collectives_.empty() && collectives_.front()->complete()) {
    complete.push_back(std::move(collectives_.front()));
    collectives_.pop_front();
  }
  const auto take = [&](auto& request) {
    if (!request->complete()) return false;
    complete.push_back(std::move(request));
    return true;
  };
  std::erase_if(sends_, take);
  std::erase_if(recvs_, take);
}

std::vector<int> MpiCommunicator::first_awaited() const {
  const auto first =
      std::ranges::find_if(collectives_, [](const auto& request) { return !request->complete(); });
  return first == collectives_.end() ? std::vector<int>() : (*first)->missing();
}

std::shared_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  const auto part = detail::split_numbered(*this, color, key, context_->last_group());
  const auto made = this->part(part.ranks, static_cast<int>(part.number));
  if (made == nullptr) return nullptr;
  made->join();
  log::debug(detail::concat(made->where("split"), " joined its group"));
  return made;
}

std::shared_ptr<Communicator> MpiCommunicator::new_group(std::span<const int> members) {
  const std::vector ranks(members.begin(), members.end());
  const auto agreement = part(ranks, agreement_group);
  return part(ranks, detail::agree_on_number(*agreement, context_->last_group()));
}

std::shared_ptr<MpiCommunicator> MpiCommunicator::part(const std::vector<int>& ranks, int number) {
  const int most = messages::most_groups(context_->transport().last_tag());
  if (number > most) {
    throw CommError(
        detail::concat(where("split"), ": this MPI has tags for ", most, " groups, and no more"));
  }
  {
    const auto lock = context_->lock();
    context_->set_last_group(std::max(context_->last_group(), number));
  }
  if (ranks.empty()) return nullptr;
  const auto own = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  auto made = std::make_shared<MpiCommunicator>(context_, detail::at_ranks(group_.members, ranks),
                                                own, number);
  made->set_placement(detail::hosts_of(ranks, hosts()));
  return made;
}

}  // namespace lockstep::mpi
