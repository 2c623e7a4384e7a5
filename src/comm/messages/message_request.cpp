#include "comm/messages/message_request.h"

#include <utility>

#include "comm/messages/message_communicator.h"

namespace lockstep::inline v0_2::messages {

CollectiveRequest::CollectiveRequest(MessageCommunicator& group, Operation&& operation)
    : MessageRequest(group, std::move(operation)),
      protocol_(group.transport(), this->operation()) {}

void CollectiveRequest::advance() {
  protocol_.advance();
  if (complete() || !protocol_.complete()) return;
  worked_ = protocol_.worked();
  set_complete();
}

std::vector<int> CollectiveRequest::missing() const {
  if (protocol_.is_queued()) return group().first_missing();
  std::vector<int> ranks;
  for (const int member : protocol_.missing()) ranks.push_back(group().world_rank(member));
  return ranks;
}

SendRequest::SendRequest(MessageCommunicator& group, Operation&& operation)
    : MessageRequest(group, std::move(operation)),
      protocol_(group.transport(), this->operation()) {}

void SendRequest::advance() {
  protocol_.advance();
  if (!complete() && protocol_.complete()) set_complete();
}

std::vector<int> SendRequest::missing() const { return {group().world_rank(operation().peer)}; }

RecvRequest::RecvRequest(MessageCommunicator& group, Operation&& operation)
    : MessageRequest(group, std::move(operation)), receive_(this->operation()) {}

void RecvRequest::begin() { group().receives().add(receive_); }

void RecvRequest::advance() {
  if (complete() || !receive_.complete()) return;
  set_source(receive_.source());
  set_complete();
}

std::vector<int> RecvRequest::missing() const {
  const int from = operation().peer == any_source ? receive_.source() : operation().peer;
  if (from != any_source) return {group().world_rank(from)};
  return detail::possible_senders(group().members(), group().rank(),
                                  [this](int rank) { return group().context().has_left(rank); });
}

std::string RecvRequest::note() const { return group().receives().describe_early(receive_); }

bool RecvRequest::withdraw() { return group().receives().withdraw(receive_); }

}  // namespace lockstep::messages
