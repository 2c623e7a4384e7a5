#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/address.h"
#include "comm/control/joining.h"
#include "lockstep/error.h"

namespace lockstep::testing {

using namespace std::chrono_literals;

/// A rank of a world of this machine that says it is on the host of that name.
inline control::Settings rank_of(int rank, int size, const std::string& host = "a") {
  return {.rank = rank, .size = size, .host = host, .timeout = std::chrono::seconds(20)};
}

/// The error that fn throws, with the kind of a timeout before it; "nothing" if it throws none.
inline std::string thrown(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const TimeoutError& error) {
    return std::string("timeout: ") + error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

/// A rank that joins in a thread.
inline std::future<control::Member> joining(const control::Offer& offer,
                                            const control::Settings& settings) {
  return std::async(std::launch::async, [=] { return join(offer, settings); });
}

/// A rank 0 that waits for the others in a thread.
struct Waiting {
  explicit Waiting(control::Settings rank_0) : gathering(std::move(rank_0)) {}

  control::Gathering gathering;
  const control::Offer& offer = gathering.offer();
  std::future<std::vector<control::Member>> members =
      std::async(std::launch::async, [this] { return gathering.wait(); });
};

/// The connections of rank 0 and of these others, which have met. Throws what rank 0 threw.
struct Met {
  std::vector<control::Member> of_rank_0;
  std::vector<control::Member> is_agreed;
};

inline Met meet(control::Settings rank_0, const std::vector<control::Settings>& others) {
  control::Gathering gathering(std::move(rank_0));
  std::vector<std::future<control::Member>> coming;
  for (const auto& settings : others) coming.push_back(joining(gathering.offer(), settings));
  Met met{.of_rank_0 = gathering.wait(), .is_agreed = {}};
  for (auto& one : coming) met.is_agreed.push_back(one.get());
  return met;
}

/// A connection from a process that has only the address.
inline detail::Descriptor stranger(const control::Address& to) {
  detail::Descriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), to.get(), to.length()), 0);
  return socket;
}

inline void say(const detail::Descriptor& socket, std::string_view bytes) {
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

/// Everything that the other end says until it closes.
inline std::string heard(const detail::Descriptor& socket) {
  std::string text;
  std::array<char, 4096> room;
  for (ssize_t got = 0; (got = ::recv(socket.get(), room.data(), room.size(), 0)) > 0;) {
    text.append(room.data(), static_cast<std::size_t>(got));
  }
  return text;
}

/// The next bytes of a connection.
inline std::string received(const detail::Descriptor& socket, std::size_t count) {
  std::string bytes(count, '\0');
  EXPECT_EQ(::recv(socket.get(), bytes.data(), count, MSG_WAITALL), static_cast<ssize_t>(count));
  return bytes;
}

inline const auto header_bytes = control::encode({}).size();
inline control::Nonce challenge(const detail::Descriptor& socket) {
  control::Nonce nonce{};
  received(socket, header_bytes + nonce.size()).copy(nonce.data(), nonce.size(), header_bytes);
  return nonce;
}

/// The answer of a rank to the challenge that this connection gets.
inline std::string hello(const detail::Descriptor& socket, const control::Offer& offer,
                         const control::Settings& settings, std::uint64_t process = 1,
                         std::uint64_t attempt = 1) {
  control::Hello content{
      .process = process, .attempt = attempt, .rank = settings.rank, .size = settings.size};
  control::set_text(content.version, settings.version);
  control::set_text(content.host, settings.host);
  auto macs = control::macs_of(offer.token, {.purpose = settings.purpose,
                                             .gatherer = offer.rank,
                                             .joiner = settings.rank,
                                             .of_gatherer = challenge(socket),
                                             .of_joiner = content.nonce});
  return control::encode({.kind = control::Kind::hello, .payload = control::bytes_of(content)},
                         &macs.to_gatherer);
}

/// The answer of rank 1 of a control connection to a challenge, and the MACs that follow.
struct Answer {
  std::string bytes;
  control::ConnectionMacs macs;
};
inline Answer challenged(const detail::Descriptor& socket, const control::Offer& offer) {
  control::Parties parties{.purpose = "control", .gatherer = offer.rank, .joiner = 1};
  say(socket, control::encode({.kind = control::Kind::challenge,
                               .payload = control::bytes_of(parties.of_gatherer)}));
  auto bytes = received(socket, header_bytes + sizeof(control::Hello) + control::FrameMac::bytes);
  bytes.copy(parties.of_joiner.data(), parties.of_joiner.size(), header_bytes);
  return {.bytes = bytes, .macs = control::macs_of(offer.token, parties)};
}

/// Connects as this rank, and waits until rank 0 has accepted it.
inline detail::Descriptor accepted(const control::Offer& offer, const control::Settings& settings,
                                   std::uint64_t process = 1, std::uint64_t attempt = 1) {
  auto socket = stranger(offer.addresses[0]);
  say(socket, hello(socket, offer, settings, process, attempt));
  char byte = 0;
  EXPECT_EQ(::recv(socket.get(), &byte, 1, 0), 1);
  return socket;
}

/// As many open files as the machine allows this process.
class OpenFiles {
 public:
  explicit OpenFiles(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit changed{.rlim_cur = std::min(most, before_.rlim_max),
                         .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &changed);
  }
  ~OpenFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace lockstep::testing
