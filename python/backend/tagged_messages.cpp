#include "backend/tagged_messages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace lockstep_torch {
namespace {

std::exception_ptr wrong_size(int rank, int source, std::size_t got, std::size_t expected) {
  return std::make_exception_ptr(std::invalid_argument(
      c10::str("lockstep recv rank ", rank, ": got ", got, " bytes from rank ", source,
               ", expected ", expected, "; pass tensors of the same size to send and recv")));
}

}  // namespace

TaggedMessages::TaggedMessages(lockstep::Communicator& world)
    : world_(world), early_(static_cast<std::size_t>(world.size())) {}

void TaggedMessages::receive(const WorkPointer& work, const at::Tensor& buffer, int source,
                             std::uint32_t tag) {
  ++work->parts.receives;
  receives_.push_back({.work = work, .buffer = buffer, .source = source, .tag = tag});
  const auto receive = std::prev(receives_.end());
  for (int from = 0; from < world_.size(); ++from) {
    auto& early = early_[static_cast<std::size_t>(from)];
    const auto found = std::ranges::find_if(
        early, [&](const Early& message) { return receive->expects(from, message.tag); });
    if (found == early.end()) continue;
    const auto content = std::move(found->content);
    early.erase(found);
    deliver(receive, from, content);
    return;
  }
}

bool TaggedMessages::advance() {
  bool moved = false;
  for (int source = 0; source < world_.size(); ++source) {
    if (source == world_.rank()) continue;
    while (expects_from(source) && advance(source)) moved = true;
  }
  return moved;
}

bool TaggedMessages::expects_from(int source) const {
  return std::ranges::any_of(receives_, [&](const Receive& receive) {
    return receive.source == source || receive.source == any_source;
  });
}

bool TaggedMessages::advance(int source) {
  const auto message = world_.pending_message(source);
  if (!message) return false;
  const auto receive = std::ranges::find_if(
      receives_, [&](const Receive& one) { return one.expects(source, message->tag); });
  const bool in_place = receive != receives_.end() && receive->buffer.nbytes() == message->count;
  const auto content = in_place ? receive->buffer
                                : at::empty({static_cast<std::int64_t>(message->count)}, at::kByte);
  world_.recv(content.data_ptr(), message->count, lockstep::DType::u8, source, message->tag).wait();
  if (in_place) {
    complete(receive, source);
  } else if (receive != receives_.end()) {
    deliver(receive, source, content);
  } else {
    early_[static_cast<std::size_t>(source)].push_back({.content = content, .tag = message->tag});
  }
  return true;
}

void TaggedMessages::deliver(std::deque<Receive>::iterator receive, int source,
                             const at::Tensor& content) {
  if (content.nbytes() != receive->buffer.nbytes()) {
    receive->work->parts.error =
        wrong_size(world_.rank(), source, content.nbytes(), receive->buffer.nbytes());
  } else if (content.nbytes() > 0) {
    std::memcpy(receive->buffer.data_ptr(), content.data_ptr(), content.nbytes());
  }
  complete(receive, source);
}

void TaggedMessages::complete(std::deque<Receive>::iterator receive, int source) {
  auto& parts = receive->work->parts;
  parts.source = source;
  --parts.receives;
  receives_.erase(receive);
}

std::vector<int> TaggedMessages::missing(const BackendWork& work) const {
  std::vector<int> ranks;
  for (const auto& receive : receives_) {
    if (receive.work.get() == &work && receive.source != any_source) {
      ranks.push_back(receive.source);
    }
  }
  return ranks;
}

void TaggedMessages::forget(const BackendWork& work) {
  std::erase_if(receives_, [&](const Receive& receive) { return receive.work.get() == &work; });
}

}  // namespace lockstep_torch
