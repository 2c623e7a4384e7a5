#include "comm/host/arrivals.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "comm/host/socket_holder.h"
#include "core/log.h"
#include "core/text.h"

namespace lockstep::inline v0_2::host {
namespace {

using detail::concat;

/// How long a connection may hold a place without a word.
constexpr auto patience = std::chrono::seconds(5);
/// Connections beyond one of each rank.
constexpr std::size_t spare = 64;

}  // namespace

bool Arrivals::complete() const {
  return std::find(here_.begin(), here_.end(), false) == here_.end();
}

bool Arrivals::may_be(int rank) const {
  return rank > 0 && rank < static_cast<int>(here_.size()) &&
         !here_[static_cast<std::size_t>(rank)];
}

int Arrivals::lowest_missing() const {
  const auto missing = std::ranges::find(here_, false);
  return missing == here_.end() ? -1 : static_cast<int>(missing - here_.begin());
}

void Arrivals::add(int rank, pid_t pid) {
  here_[static_cast<std::size_t>(rank)] = true;
  // A process of another pid namespace has no number here.
  if (pid != 0) processes_.emplace_back(rank, ProcessWatch(pid));
}

std::string Arrivals::missing() const {
  std::string text;
  for (std::size_t rank = 0; rank < here_.size(); ++rank) {
    if (!here_[rank]) text += concat(text.empty() ? "" : ", ", rank);
  }
  return text;
}

std::optional<int> Arrivals::ended() const {
  for (const auto& [rank, process] : processes_) {
    if (process.ended()) return rank;
  }
  return std::nullopt;
}

void Arrivals::watch(std::vector<pollfd>& waiting) const {
  for (const auto& [rank, process] : processes_) {
    waiting.push_back({.fd = process.fd(), .events = POLLIN, .revents = 0});
  }
}

PendingConnections::PendingConnections(int size) : most_(static_cast<std::size_t>(size) + spare) {}

void PendingConnections::add(detail::Descriptor socket) {
  const ucred who = peer_of(socket.get());
  if (who.uid != ::geteuid()) {
    log::warn(concat("init: user ", who.uid, " came to the ranks' meeting place; not let in"));
    return;
  }
  if (waiting_.size() == most_) drop(waiting_.begin());
  waiting_.push_back(
      {.socket = std::move(socket), .pid = who.pid, .until = detail::Deadline(patience)});
}

void PendingConnections::watch(std::vector<pollfd>& waiting) const {
  for (const auto& one : waiting_) {
    waiting.push_back({.fd = one.socket.get(), .events = POLLIN, .revents = 0});
  }
}

void PendingConnections::look(const Hear& hear) {
  for (auto one = waiting_.begin(); one != waiting_.end();) {
    Hello hello{};
    const auto got = ::recv(one->socket.get(), &hello, sizeof hello, MSG_DONTWAIT);
    const bool nothing = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (got == sizeof hello && hello.magic == Hello::expected_magic) {
      const Connection known = std::move(*one);
      one = waiting_.erase(one);
      hear(known.socket.get(), known.pid, hello);
    } else if (nothing && !one->until.passed()) {
      ++one;
    } else {
      one = drop(one);
    }
  }
}

std::string PendingConnections::dropped() const {
  if (dropped_ == 0) return "";
  return concat("; ", last_dropped_, " connected and sent no hello",
                dropped_ == 1 ? "" : concat(", the last of ", dropped_, " such connections"));
}

PendingConnections::Place PendingConnections::drop(Place one) {
  last_dropped_ = process_text(one->pid);
  ++dropped_;
  log::warn(concat("init: ", last_dropped_, " connected and sent no hello"));
  return waiting_.erase(one);
}

}  // namespace lockstep::host
