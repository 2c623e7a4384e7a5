#include "lockstep/adapter/adapted_communicator.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/hosts.h"
#include "lockstep/comm/message_terms.h"
#include "lockstep/comm/private_memory.h"
#include "lockstep/comm/split.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/rank_list.h"
#include "lockstep/core/text.h"
#include "lockstep/core/version_tag.h"

namespace lockstep::adapter {
namespace {

using detail::concat;

/// The rank's hold on an operation. It keeps the group, and with it the lane.
class FlightTicket final : public detail::Ticket {
 public:
  FlightTicket(std::shared_ptr<AdaptedCommunicator> group, std::shared_ptr<Flight> flight)
      : group_(std::move(group)), flight_(std::move(flight)) {}

  bool test() override {
    const Endpoint::Use use(endpoint());
    if (!over() && !endpoint().failed()) return false;
    finish();
    return true;
  }

  bool complete() const override {
    return endpoint().look([&] { return flight_->complete(); });
  }

  void wait() override {
    const Endpoint::Use use(endpoint());
    const auto limit = detail::wait_limit(flight_->operation(), endpoint().timeout());
    if (!endpoint().await(limit, [&] { return flight_->over() || endpoint().failed(); })) {
      endpoint().fail({.timeout = true,
                       .text = concat(flight_->operation().label(), " waited ",
                                      limit.count() / 1000.0, " s for ", whom())});
    }
    finish();
  }

  void abandon() noexcept override {
    if (over()) return;
    group_->fail(concat(flight_->operation().label(),
                        " was abandoned: an exception left the scope of its Work"));
    let_go();
  }

  std::vector<int> missing() const override {
    const auto rank = endpoint().look([&] { return flight_->awaited(); });
    return rank ? std::vector{*rank} : std::vector<int>();
  }

 private:
  Endpoint& endpoint() const { return group_->endpoint(); }
  bool over() const {
    return endpoint().look([&] { return flight_->over(); });
  }
  /// Until the flight has let go of the caller's buffers.
  void let_go() {
    const auto& operation = flight_->operation();
    const bool to_self = operation.is_message() && operation.peer == group_->rank();
    if (to_self && !over()) flight_->end(false);  // no lane does it
    endpoint().await([&] { return flight_->over(); });
    worked_ = flight_->worked();
  }
  void finish() {
    let_go();
    if (!complete()) {
      endpoint().throw_failure(group_->where(flight_->operation().label()));
    }
  }
  std::string whom() const {
    const auto ranks = missing();
    return ranks.empty() ? "the operations before it" : detail::rank_list(ranks);
  }

  std::shared_ptr<AdaptedCommunicator> group_;
  std::shared_ptr<Flight> flight_;
};

/// What ranks tell one another when they meet.
struct Card {
  detail::VersionTag version;
  std::uint64_t host;
  std::int64_t world;
};

}  // namespace

AdaptedCommunicator::AdaptedCommunicator(std::shared_ptr<Endpoint> endpoint,
                                         std::vector<int> members, int rank, int number)
    : Communicator(rank, static_cast<int>(members.size())),
      endpoint_(std::move(endpoint)),
      channel_(std::make_shared<const Channel>(endpoint_, std::move(members), rank, number)) {}

AdaptedCommunicator::~AdaptedCommunicator() = default;

std::string AdaptedCommunicator::where(std::string_view label) const {
  return concat(label, " (", backend(), ") rank ", rank(), " of ", size());
}

std::shared_ptr<std::byte> AdaptedCommunicator::allocate(std::size_t bytes) {
  return detail::take_private_memory(bytes, backend());
}

void AdaptedCommunicator::fail(std::string_view cause) noexcept {
  endpoint_->fail({.text = std::string(cause)});
}

void AdaptedCommunicator::fail_by_timeout(std::string_view cause) noexcept {
  endpoint_->fail({.timeout = true, .text = std::string(cause)});
}

void AdaptedCommunicator::look() {
  const Endpoint::Use use(*endpoint_);
  if (endpoint_->failed()) endpoint_->throw_failure(where("world"));
}

void AdaptedCommunicator::meet(const std::string& host,
                               const c10::intrusive_ptr<c10d::Store>& store) {
  Card own{.version = detail::version_tag(),
           .host = detail::digest(std::as_bytes(std::span(host))),
           .world = 0};
  if (store && rank() == 0) {
    try {
      own.world = store->add("lockstep/worlds", 1);
    } catch (const std::exception& error) {
      throw CommError(concat(where("over"), ": the store does not answer: ", error.what()));
    }
  }
  std::vector<Card> all(static_cast<std::size_t>(size()));
  start({.collective = Collective::all_gather,
         .dtype = DType::u8,
         .input = reinterpret_cast<const std::byte*>(&own),
         .output = reinterpret_cast<std::byte*>(all.data()),
         .count = sizeof own})
      .wait();
  std::vector<std::uint64_t> known_by;
  for (const auto& card : all) {
    detail::expect_version(where("over"), known_by.size(), card.version, all.front().version);
    known_by.push_back(card.host);
  }
  set_hosts(detail::numbered_hosts(known_by));
  if (store && size() > 1) endpoint_->watch(store, all.front().world);
}

Work AdaptedCommunicator::begin(Operation&& operation) {
  const Endpoint::Use use(*endpoint_);
  number(operation);
  if (endpoint_->failed()) endpoint_->throw_failure(where(operation.label()));
  return start(std::move(operation));
}

Work AdaptedCommunicator::start(Operation&& operation) {
  const bool message = operation.is_message();
  const bool alone = message ? operation.peer == rank() : size() == 1;
  const std::shared_ptr<Flight> flight = message ? make_message(channel_, std::move(operation))
                                                 : make_collective(channel_, std::move(operation));
  if (alone && message) {
    begin_to_self(flight);
  } else if (alone) {
    flight->run();
  } else {
    lane_of(flight->operation()).add(flight);
  }
  return Work(std::make_shared<FlightTicket>(shared_from_this(), flight));
}

Lane& AdaptedCommunicator::lane_of(const Operation& operation) {
  std::optional<std::pair<Collective, int>> key;
  if (operation.is_message()) key = {operation.collective, operation.peer};
  auto& lane = lanes_[key];
  if (lane == nullptr) lane = std::make_unique<Lane>();
  return *lane;
}

void AdaptedCommunicator::begin_to_self(const std::shared_ptr<Flight>& flight) {
  const auto& mine = flight->operation();
  if (to_self_.empty() || to_self_.front()->operation().collective == mine.collective) {
    to_self_.push_back(flight);
    return;
  }
  const auto other = std::move(to_self_.front());
  to_self_.pop_front();
  const bool sends = mine.collective == Collective::send;
  const auto& from = sends ? mine : other->operation();
  const auto& to = sends ? other->operation() : mine;
  const auto expected = detail::terms_of(to);
  const auto got = detail::terms_of(from);
  const bool alike = expected == got;
  if (alike && to.count > 0) std::memcpy(to.output, from.input, to.count * size_of(to.dtype));
  if (!alike) {
    const int here = channel_->world_rank(rank());
    fail(detail::describe_difference(mine.sequence, here, here, expected, got));
  }
  flight->end(alike);
  other->end(alike);
}

std::shared_ptr<Communicator> AdaptedCommunicator::split(int color, int key) {
  const auto part = detail::split_numbered(*this, color, key, endpoint_->last_group());
  endpoint_->set_last_group(static_cast<int>(part.number));
  if (part.ranks.empty()) return nullptr;
  const auto made = std::make_shared<AdaptedCommunicator>(
      endpoint_, detail::picked(channel_->members(), part.ranks), part.rank,
      static_cast<int>(part.number));
  made->set_hosts(detail::hosts_of(part.ranks, hosts()));
  return made;
}

}  // namespace lockstep::adapter
