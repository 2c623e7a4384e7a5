#include "comm/mpi/mpi_communicator.h"

#include <algorithm>

#include "comm/hosts.h"
#include "comm/mpi/join_record.h"
#include "comm/private_memory.h"
#include "comm/split.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::mpi {

MpiCommunicator::MpiCommunicator(std::shared_ptr<RankContext> context, std::vector<int> members,
                                 int rank, int number)
    : Communicator(rank, static_cast<int>(members.size())),
      context_(std::move(context)),
      members_(std::move(members)),
      number_(number) {
  inboxes_.resize(members_.size());
  received_.resize(members_.size());
  const auto lock = context_->hold();
  for (int member = 0; member < size(); ++member) {
    if (member == this->rank()) continue;
    inboxes_[static_cast<std::size_t>(member)].room.resize(CollectiveRequest::parcel_bytes(size()));
    listen(member);
  }
  context_->add(*this);
}

MpiCommunicator::~MpiCommunicator() {
  if (context_->in_child()) return;
  const auto lock = context_->hold();
  context_->remove(*this);
  try {
    context_->transport().cancel(tag_of(number_, Channel::announcements));
  } catch (const CommError& error) {
    log::warn(detail::concat(where("a group's end"), ": ", error.what()));
  }
}

void MpiCommunicator::listen(int member) {
  auto& inbox = inboxes_[static_cast<std::size_t>(member)];
  receive(inbox.room.data(), inbox.room.size(), member, Channel::announcements,
          [this, member](std::size_t bytes) {
            auto& [room, waiting] = inboxes_[static_cast<std::size_t>(member)];
            waiting.emplace_back(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(bytes));
            listen(member);
          });
}

std::shared_ptr<std::byte> MpiCommunicator::allocate(std::size_t bytes) {
  return detail::take_private_memory(bytes, backend());
}

std::string MpiCommunicator::where(std::string_view label) const {
  return detail::concat(label, " (mpi) rank ", rank(), " of ", size());
}

void MpiCommunicator::fail(std::string_view cause) noexcept { fail_as(false, cause); }

void MpiCommunicator::fail_by_timeout(std::string_view cause) noexcept { fail_as(true, cause); }

void MpiCommunicator::fail_as(bool timeout, std::string_view cause) noexcept {
  if (context_->in_child()) return;
  context_->set_failure_met();
  try {
    context_->fail(
        {.timeout = timeout, .text = detail::concat("rank ", context_->rank(), ": ", cause)});
  } catch (const std::bad_alloc&) {
    context_->fail({.timeout = timeout, .text = "a rank failed"});
  }
}

void MpiCommunicator::look() {
  const Use use(*context_);
  context_->poll();
  if (context_->failed()) context_->throw_failure(where("world"));
}

void MpiCommunicator::abandon(std::string_view cause) noexcept { fail(cause); }

void MpiCommunicator::send(const std::byte* data, std::size_t bytes, int member, Channel channel,
                           Transport::Done done) const {
  context_->transport().send(data, bytes, world_rank(member), tag_of(number_, channel),
                             std::move(done));
}

void MpiCommunicator::send_synchronously(const std::byte* data, std::size_t bytes, int member,
                                         Channel channel, Transport::Done done) const {
  context_->transport().send_synchronously(data, bytes, world_rank(member),
                                           tag_of(number_, channel), std::move(done));
}

void MpiCommunicator::receive(std::byte* data, std::size_t bytes, int member, Channel channel,
                              Transport::Done done) const {
  context_->transport().receive(data, bytes, world_rank(member), tag_of(number_, channel),
                                std::move(done));
}

void MpiCommunicator::join() { unnumbered({.collective = Collective::barrier}); }

void MpiCommunicator::meet_hosts(const std::string& host) {
  const JoinRecord own = join_record_of(host, context_->options().algorithm);
  std::vector<JoinRecord> all(static_cast<std::size_t>(size()));
  unnumbered({.collective = Collective::all_gather,
              .dtype = DType::i64,
              .input = reinterpret_cast<const std::byte*>(&own),
              .output = reinterpret_cast<std::byte*>(all.data()),
              .count = sizeof(JoinRecord) / sizeof(std::int64_t)});
  expect_alike(all);
  std::vector<std::uint64_t> known_by;
  for (const auto& join_record : all) known_by.push_back(join_record.host);
  place(detail::numbered_hosts(known_by));
}

void MpiCommunicator::place(std::vector<int> hosts) {
  placement_ = Placement::of(hosts);
  set_hosts(std::move(hosts));
}

void MpiCommunicator::share(std::span<std::byte> bytes) {
  unnumbered({.collective = Collective::broadcast,
              .dtype = DType::u8,
              .input = bytes.data(),
              .output = bytes.data(),
              .count = bytes.size(),
              .peer = 0});
}

void MpiCommunicator::unnumbered(Operation&& operation) {
  const auto begin = [&] {
    const RankContext::Use use(*context_);
    return start(std::move(operation));
  };
  begin().wait();
}

Work MpiCommunicator::begin(Operation&& operation) {
  const RankContext::Use use(*context_);
  number(operation);
  if (context_->failed()) context_->throw_failure(where(operation.label()));
  if (operation.is_message()) return begin_message(std::move(operation));
  return start(std::move(operation));
}

Work MpiCommunicator::start(Operation&& operation) {
  auto request = std::make_shared<CollectiveRequest>(*this, std::move(operation));
  collectives_.push_back(request);
  context_->attempt([&] { request->announce(); });
  context_->poll();
  if (!request->complete()) context_->wake_thread();
  return Work(std::move(request));
}

Work MpiCommunicator::begin_message(Operation&& operation) {
  auto request = std::make_shared<MessageRequest>(*this, std::move(operation));
  messages_.push_back(request);
  context_->attempt([&] { request->begin(); });
  context_->poll();
  if (!request->complete()) context_->wake_thread();
  return Work(std::move(request));
}

void MpiCommunicator::poll() {
  for (const auto& request : collectives_) request->meet();
  for (const auto& request : collectives_) {
    request->advance();
    if (!request->lets_next_begin()) break;
  }
  for (const auto& request : messages_) request->advance();
}

bool MpiCommunicator::under_way() const {
  const auto incomplete = [](const auto& request) { return !request->complete(); };
  return std::ranges::any_of(collectives_, incomplete) ||
         std::ranges::any_of(messages_, incomplete);
}

void MpiCommunicator::let_go(std::vector<std::shared_ptr<void>>& complete) {
  while (!collectives_.empty() && collectives_.front()->complete()) {
    complete.push_back(std::move(collectives_.front()));
    collectives_.pop_front();
  }
  std::erase_if(messages_, [&](auto& request) {
    if (!request->complete()) return false;
    complete.push_back(std::move(request));
    return true;
  });
}

std::vector<int> MpiCommunicator::holding_up() const {
  const auto first =
      std::ranges::find_if(collectives_, [](const auto& request) { return !request->complete(); });
  return first == collectives_.end() ? std::vector<int>() : (*first)->missing();
}

std::shared_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  const auto part = detail::split_numbered(*this, color, key, context_->last_group());
  const int most = most_groups(context_->transport().last_tag());
  if (part.number > most) {
    throw CommError(
        detail::concat(where("split"), ": this MPI has tags for ", most, " groups, and no more"));
  }
  context_->set_last_group(static_cast<int>(part.number));
  if (part.ranks.empty()) return nullptr;
  const auto made = std::make_shared<MpiCommunicator>(
      context_, detail::picked(members_, part.ranks), part.rank, static_cast<int>(part.number));
  made->place(detail::hosts_of(part.ranks, hosts()));
  made->join();
  log::debug(detail::concat(made->where("split"), " joined its group"));
  return made;
}

}  // namespace lockstep::mpi
