#include "comm/host/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "comm/first_error.h"
#include "comm/host/host.h"
#include "comm/host/world/rendezvous.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::host {

HostCommunicator::HostCommunicator(std::shared_ptr<HostRankContext> context,
                                   std::vector<int> members, Block block, int number)
    : BackendCommunicator(
          static_cast<int>(std::ranges::find(members, context->rank()) - members.begin()),
          static_cast<int>(members.size())),
      context_(std::move(context)),
      members_(std::move(members)),
      block_(block),
      number_(number),
      progress_(static_cast<int>(members_.size())),
      receives_(size()) {
  for (const int member : members_) world_ranks_.push_back(context_->world_rank(member));
  set_member_rank(block_, rank(), context_->rank());
  context_->add(*this);
}

HostCommunicator::~HostCommunicator() {
  context_->remove(*this);
  if (context_->in_child()) return;
  block_.leave();
  if (number_ > 0 && rank() == 0) context_->retire(block_);  // split() has allocated it
}

std::shared_ptr<std::byte> HostCommunicator::allocate(std::size_t bytes) {
  return context_->allocate(bytes);
}

std::optional<std::uint64_t> HostCommunicator::place_of(const void* memory) const {
  const auto offset = context_->arena().offset_of(static_cast<const std::byte*>(memory));
  if (offset == no_offset) return {};
  return offset;
}

std::byte* HostCommunicator::at_place(std::uint64_t place) const {
  return context_->arena().at(place);
}

Waited HostCommunicator::waited(const Operation& operation) const {
  return {.group = context_->arena().offset_of(block_.base()),
          .members = size(),
          .member = rank(),
          .number = number_,
          .collective = operation.collective,
          .peer = operation.is_message() ? operation.peer : -1,
          .sequence = operation.sequence,
          .source = operation.issue.source};
}

void HostCommunicator::join() {
  const auto begin_barrier = [&] {
    const HostRankContext::CallGuard guard(*context_);
    return start(Operation{.collective = Collective::barrier});
  };
  begin_barrier().wait();
}

void HostCommunicator::drop(std::vector<std::shared_ptr<void>>& /*pending*/) {
  collectives_.clear();
  sends_.clear();
  receives_.close_all();
}

Work HostCommunicator::begin(Operation&& operation) {
  const HostRankContext::CallGuard guard(*context_);
  context_->check_launcher_regularly();
  if (context_->failed()) {
    number(operation);
    context_->throw_failure(where(operation.label()));
  }
  if (operation.collective == Collective::send) return begin_send(std::move(operation));
  if (operation.collective == Collective::recv) return begin_recv(std::move(operation));
  number(operation);
  return start(std::move(operation));
}

Work HostCommunicator::start(Operation&& operation) {
  auto request = std::make_shared<CollectiveRequest>(*this, std::move(operation));
  collectives_.push_back(request);
  set_issued(block_, rank(), request->operation().sequence);
  poll();
  return Work(std::move(request));
}

Work HostCommunicator::begin_send(Operation&& operation) {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  std::shared_ptr<std::byte> copy;
  if (bytes > 0 && context_->arena().offset_of(operation.input) == no_offset) {
    copy = allocate(bytes);  // throws if memory is short, before the message has a number
    std::memcpy(copy.get(), operation.input, bytes);
  }
  number(operation);
  auto request = std::make_shared<SendRequest>(*this, std::move(operation), std::move(copy));
  sends_.push_back(request);
  request->count_as_begun();
  poll();
  return Work(std::move(request));
}

Work HostCommunicator::begin_recv(Operation&& operation) {
  number(operation);
  auto request = std::make_shared<RecvRequest>(*this, std::move(operation));
  const auto early = receives_.take_message(request->operation());
  if (early == nullptr) {
    receives_.add(request);
  } else if (request->copy(early->source, early->terms, early->data.get())) {
    request->finish();
  }
  poll();
  return Work(std::move(request));
}

void HostCommunicator::check_processes(std::string_view label) {
  const detail::RankContext::CallGuard guard(*context_);
  context_->check_processes(members_, label, where(label));
}

void HostCommunicator::poll() {
  advance_in_order(collectives_);
  if (receives_.has_open()) take_messages();
  if (sends_.empty()) return;
  for (const auto& request : sends_) request->advance();
  std::erase_if(sends_, [](const auto& request) { return request->complete(); });
}

std::shared_ptr<Communicator> HostCommunicator::split(int color, int key) {
  const auto part = detail::split_numbered(*this, color, key, context_->last_group());
  context_->set_last_group(static_cast<int>(part.number));
  const auto& group_ranks = part.ranks;

  // The first member allocates the block in its own memory.
  const int members = static_cast<int>(group_ranks.size());
  constexpr auto none = static_cast<std::int64_t>(no_offset);
  detail::SplitChoice mine{.color = color, .key = key, .own = none};
  std::exception_ptr shortage;
  if (!group_ranks.empty() && group_ranks.front() == rank()) {
    try {
      mine.own = static_cast<std::int64_t>(context_->allocate_block(members));
    } catch (const CommError&) {
      shortage = std::current_exception();
    }
  }
  const auto choices =
      detail::or_own_error(shortage, [&] { return detail::exchange_choices(*this, mine); });
  if (group_ranks.empty()) return nullptr;
  if (shortage != nullptr) std::rethrow_exception(shortage);

  const auto offset = choices[static_cast<std::size_t>(group_ranks.front())].own;
  if (offset == none) {
    const int short_of_memory = world_rank(group_ranks.front());
    throw CommError(detail::concat(where("split"), ": rank ", short_of_memory,
                                   " has too little shared memory for the new group"),
                    {.rank = short_of_memory, .operation = "split"});
  }
  auto made = std::make_shared<HostCommunicator>(
      context_, detail::at_ranks(members_, group_ranks),
      Block(context_->arena().at(static_cast<std::uint64_t>(offset)), members),
      static_cast<int>(part.number));
  made->join();
  log::debug(detail::concat(made->where("split"), " joined its group"));
  return made;
}

std::shared_ptr<Communicator> HostCommunicator::new_group(std::span<const int> members) {
  const auto ranks = detail::at_ranks(members_, members);  // of the host world
  const auto own = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
  const auto name = [&] {
    const HostRankContext::CallGuard guard(*context_);
    return context_->name_of_new_world(ranks);
  }();
  auto settings = context_->options();
  settings.world_ranks = detail::at_ranks(world_ranks_, members);
  settings.map_heaps = false;
  settings.watch = true;
  settings.supervised = false;
  settings.records = false;
  const LauncherWatch watch(settings.launcher, settings.launcher_name);
  const auto world = rendezvous(name, own, static_cast<int>(ranks.size()), settings.timeout,
                                [&] { return watch.ended(); }, {.call = "new_group"});
  return host::create(world, own, settings);
}

}  // namespace lockstep::host
