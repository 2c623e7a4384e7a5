#include "lockstep/comm/host/host_communicator.h"

#include <algorithm>
#include <exception>
#include <new>

#include "lockstep/comm/split.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::host {

HostCommunicator::HostCommunicator(std::shared_ptr<Endpoint> endpoint, std::vector<int> members,
                                   int rank, Block block, bool owns_block)
    : Communicator(rank, static_cast<int>(members.size())),
      endpoint_(std::move(endpoint)),
      members_(std::move(members)),
      block_(block),
      owns_block_(owns_block) {
  for (const int member : members_) names_.push_back(endpoint_->named(member));
  progress_.arrived.resize(members_.size());
  progress_.worked.resize(members_.size());
  endpoint_->add(*this);
}

HostCommunicator::~HostCommunicator() {
  endpoint_->remove(*this);
  block_.attached().fetch_sub(1);
  if (owns_block_) endpoint_->retire(block_);
}

std::shared_ptr<std::byte> HostCommunicator::allocate(std::size_t bytes) {
  return endpoint_->allocate(bytes);
}

std::optional<std::uint64_t> HostCommunicator::place_of(const void* memory) const {
  const auto offset = endpoint_->arena().offset_of(static_cast<const std::byte*>(memory));
  if (offset == no_offset) return {};
  return offset;
}

std::byte* HostCommunicator::at_place(std::uint64_t place) const {
  return endpoint_->arena().at(place);
}

std::string HostCommunicator::where(std::string_view label) const {
  return detail::concat(label, " (host) rank ", rank(), " of ", size());
}

void HostCommunicator::fail(std::string_view cause) noexcept {
  fail_as(Failure::Kind::error, cause);
}

void HostCommunicator::fail_by_timeout(std::string_view cause) noexcept {
  fail_as(Failure::Kind::timeout, cause);
}

void HostCommunicator::fail_as(Failure::Kind kind, std::string_view cause) noexcept {
  const int rank = endpoint_->rank();
  try {
    endpoint_->world().fail({.kind = kind,
                             .rank = rank,
                             .text = detail::concat("rank ", endpoint_->named(rank), ": ", cause)});
  } catch (const std::bad_alloc&) {
    endpoint_->world().fail({.kind = kind, .rank = rank});
  }
}

void HostCommunicator::look() {
  const Use use(*endpoint_);
  endpoint_->poll();
  if (endpoint_->failed()) endpoint_->throw_failure(where("world"));
}

void HostCommunicator::abandon(std::string_view cause) noexcept {
  fail(cause);
  drop();
}

void HostCommunicator::join() {
  const auto meet = [&] {
    const Endpoint::Use use(*endpoint_);
    return start(Operation{.collective = Collective::barrier});
  };
  meet().wait();
}

void HostCommunicator::drop() noexcept {
  collectives_.clear();
  messages_.clear();
}

Work HostCommunicator::begin(Operation&& operation) {
  const Endpoint::Use use(*endpoint_);
  if (endpoint_->failed()) {
    number(operation);
    endpoint_->throw_failure(where(operation.label()));
  }
  if (operation.is_message()) return begin_message(std::move(operation));
  number(operation);
  return start(std::move(operation));
}

Work HostCommunicator::start(Operation&& operation) {
  auto flight = std::make_shared<CollectiveFlight>(*this, std::move(operation));
  collectives_.push_back(flight);
  poll();
  return Work(std::move(flight));
}

Work HostCommunicator::begin_message(Operation&& operation) {
  // Short of memory this throws, before the message has a number.
  auto copy = MessageFlight::copy_for(*endpoint_, operation);
  number(operation);
  auto flight = std::make_shared<MessageFlight>(*this, std::move(operation), std::move(copy));
  messages_.push_back(flight);
  poll();
  return Work(std::move(flight));
}

void HostCommunicator::poll() {
  // All that fit are announced, so that others can begin on them while this rank is behind.
  for (const auto& flight : collectives_) {
    if (!flight->posted() && !flight->post()) break;
  }
  for (const auto& flight : collectives_) {
    flight->advance();
    if (!flight->lets_next_begin()) break;
  }
  while (!collectives_.empty() && collectives_.front()->complete()) collectives_.pop_front();
  if (messages_.empty()) return;
  for (const auto& flight : messages_) flight->advance();
  std::erase_if(messages_, [](const auto& flight) { return flight->complete(); });
}

std::shared_ptr<Communicator> HostCommunicator::split(int color, int key) {
  constexpr auto none = static_cast<std::int64_t>(no_offset);
  detail::SplitChoice mine{.color = color, .key = key, .own = none};
  const auto group_ranks = detail::ranks_of_color(color, detail::exchange_choices(*this, mine));

  // The first member gives the block, out of its own memory.
  const int members = static_cast<int>(group_ranks.size());
  const bool owner = !group_ranks.empty() && group_ranks.front() == rank();
  std::exception_ptr shortage;
  if (owner) {
    try {
      mine.own = static_cast<std::int64_t>(endpoint_->take_block(members));
    } catch (const CommError&) {
      shortage = std::current_exception();
    }
  }
  const auto choices = detail::exchange_choices(*this, mine);
  if (group_ranks.empty()) return nullptr;
  if (shortage != nullptr) std::rethrow_exception(shortage);

  const auto offset = choices[static_cast<std::size_t>(group_ranks.front())].own;
  if (offset == none) {
    throw CommError(detail::concat(where("split"), ": rank ", group_ranks.front(),
                                   " has not enough exchangeable memory for the new group"));
  }
  std::vector<int> world_ranks;
  for (const int member : group_ranks)
    world_ranks.push_back(members_[static_cast<std::size_t>(member)]);
  const auto position = std::find(group_ranks.begin(), group_ranks.end(), rank());
  auto made = std::make_shared<HostCommunicator>(
      endpoint_, std::move(world_ranks), static_cast<int>(position - group_ranks.begin()),
      Block(endpoint_->arena().at(static_cast<std::uint64_t>(offset)), members), owner);
  made->join();
  log::debug(detail::concat(made->where("split"), " joined its group"));
  return made;
}

}  // namespace lockstep::host
