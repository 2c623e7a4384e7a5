#include <chrono>
#include <map>
#include <random>
#include <stop_token>
#include <thread>
#include <tuple>
#include <utility>

#include "tests/comm/conformance.h"
#include "tests/comm/oracle.h"
#include "tests/message_of.h"

// Messages between two ranks, and memory that one rank finds by the place that another passes.

namespace lockstep::testing {

using namespace std::chrono_literals;
using lockstep::detail::concat;

void require(bool as_expected, const Communicator& group, const std::string& what) {
  if (!as_expected) throw std::runtime_error(concat("rank ", group.rank(), ": ", what));
}

Work send_number(Communicator& group, std::int64_t& number, int to, std::uint32_t tag) {
  return group.send(&number, 1, DType::i64, to, tag);
}
Work recv_number(Communicator& group, std::int64_t& number, int from, std::uint32_t tag) {
  return group.recv(&number, 1, DType::i64, from, tag);
}

/// The ranks before and after this one, around the group.
static std::pair<int, int> neighbours(const Communicator& group) {
  return {(group.rank() + group.size() - 1) % group.size(), (group.rank() + 1) % group.size()};
}

void check_places(Communicator& group) {
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto memory = group.allocate(64);
  const std::int64_t ordinary = 0;
  const auto place = group.place_of(memory.get());
  require(!group.place_of(&ordinary), group, "place_of: found ordinary memory");
  if (!place) {
    return require(message_of<CommError>([&] { group.at_place(0); }) != "", group,
                   "at_place: found memory that is not shared");
  }
  std::vector<std::uint64_t> places(static_cast<std::size_t>(group.size()));
  group.all_gather(&*place, places.data(), 1, DType::i64).wait();
  // As steps of an update that ranks share: src/parallel/update/shared_update.cpp.
  const auto order = [&](bool by_barrier) {
    std::int64_t changed = 1;
    (by_barrier ? group.barrier() : group.all_reduce(&changed, 1, DType::i64, ReduceOp::max))
        .wait();
  };
  for (std::size_t round = 0; round < 8; ++round) {
    memory.get()[63] = static_cast<std::byte>(8 * rank + round);
    order(round % 2 == 0);
    for (std::size_t other = 0; other < places.size(); ++other) {
      require(group.at_place(places[other])[63] == static_cast<std::byte>(8 * other + round), group,
              concat("at_place: what rank ", other, " has written is not there"));
    }
    order(round % 2 != 0);  // no rank writes before all have read
  }
}

void check_messages(Communicator& group) {
  const auto [before, next] = neighbours(group);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{100'003}}) {
    for (const auto place : {Place::group, Place::elsewhere}) {
      const Buffer mine(group, place, make_input(DType::f32, count, group.rank(), 3));
      const Buffer theirs(group, place, Bytes(count * sizeof(float)));
      auto sent = group.send(mine.data(), count, DType::f32, next, 5);
      group.recv(theirs.data(), count, DType::f32, before, 5).wait();
      sent.wait();
      theirs.expect(make_input(DType::f32, count, before, 3), concat("message of ", count));
    }
  }
}

namespace {

/// Rank 0 chooses the order in which the others send.
void check_order_of_completion(Communicator& group) {
  const int size = group.size();
  std::int64_t signal = 0;
  if (group.rank() > 0) {
    group.recv(&signal, 1, DType::i64, 0).wait();
    group.send(&signal, 1, DType::i64, 0).wait();
    return;
  }
  std::vector<std::int64_t> answers(static_cast<std::size_t>(size));
  std::vector<Work> works(1);  // the first holds no operation
  for (int from = 1; from < size; ++from) {
    works.push_back(group.recv(&answers[static_cast<std::size_t>(from)], 1, DType::i64, from));
  }
  for (int from = size - 1; from > 0; --from) {
    const std::int64_t number = 10 * from;
    auto sent = group.send(&number, 1, DType::i64, from);
    const auto index = static_cast<std::size_t>(from);
    require(wait_any(works) == index, group, concat("wait_any did not return ", from));
    works[index].wait();
    require(answers[index] == number, group, concat("wait_any: no answer from ", from));
    sent.wait();
  }
  require(!wait_any(works), group, "wait_any of no operation returned one");
}

/// One message of the random exchange. Receives of the tags 0 and 1 are from any source.
struct Planned {
  int from;
  int to;
  std::uint32_t tag;
  std::size_t count;
  std::int64_t number;  ///< of its pair and tag
};

std::vector<Planned> random_plan(int size) {
  std::mt19937 random(20);
  const auto below = [&](std::size_t n) { return random() % n; };
  constexpr std::size_t counts[] = {0, 1, 3, 20'003};
  std::map<std::tuple<int, int, std::uint32_t>, std::int64_t> numbers;
  std::vector<Planned> plan;
  for (int i = 0; i < 60 * size; ++i) {
    const auto ranks = static_cast<std::size_t>(size);
    const int from = static_cast<int>(below(ranks));
    const int to = static_cast<int>(below(ranks));
    const auto tag = static_cast<std::uint32_t>(below(4));
    const std::size_t count = tag == 0 ? 0 : tag == 1 ? 3 : counts[below(4)];
    plan.push_back({from, to, tag, count, numbers[{from, to, tag}]++});
  }
  return plan;
}

std::vector<std::int64_t> content(const Planned& message) {
  return std::vector<std::int64_t>(message.count,
                                   1000 * (10 * message.from + message.tag) + message.number);
}

/// All receives and sends are outstanding at once. Receives are issued in another order than sends,
/// but in order for each pair and tag.
void check_random_exchange(Communicator& group) {
  const int own = group.rank();
  const auto plan = random_plan(group.size());
  std::vector<const Planned*> expected;
  for (const auto& message : plan) {
    if (message.to == own) expected.push_back(&message);
  }
  std::ranges::stable_sort(expected, [&](const auto* a, const auto* b) {
    return std::pair(7 - a->tag, (a->from + own) % 3) < std::pair(7 - b->tag, (b->from + own) % 3);
  });
  std::vector<std::vector<std::int64_t>> sent, received;
  sent.reserve(plan.size());
  received.reserve(expected.size());
  std::vector<Work> sends, recvs;
  const auto begin_sends = [&] {
    for (const auto& message : plan) {
      if (message.from != own) continue;
      sent.push_back(content(message));
      sends.push_back(
          group.send(sent.back().data(), message.count, DType::i64, message.to, message.tag));
    }
  };
  if (own % 2 == 0) begin_sends();
  for (const auto* message : expected) {
    received.emplace_back(message->count, -1);
    recvs.push_back(group.recv(received.back().data(), message->count, DType::i64,
                               message->tag < 2 ? any_source : message->from, message->tag));
  }
  if (own % 2 != 0) begin_sends();

  std::map<std::pair<int, std::uint32_t>, std::int64_t> numbers;
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    recvs[i].wait();
    const auto& planned = *expected[i];
    const int from = recvs[i].source();
    require(planned.tag < 2 || from == planned.from, group, "source of another rank");
    const auto number = numbers[{from, planned.tag}]++;
    const auto wanted = content({from, own, planned.tag, planned.count, number});
    require(received[i] == wanted, group,
            concat("receive ", i, " of tag ", planned.tag, " from ", from, " got other data"));
  }
  for (auto& work : sends) work.wait();
  group.barrier().wait();
}

/// Rank 0 cancels receives while the others send.
void check_cancel(Communicator& group) {
  const int size = group.size();
  std::int64_t untouched = -1;
  if (group.rank() == 0) {
    Work any = recv_number(group, untouched, any_source, 1);
    Work named = recv_number(group, untouched, size - 1, 1);
    require(any.cancel() && named.cancel(), group, "a receive without a message stayed");
    require(!any.pending() && any.source() == any_source, group, "a cancelled receive is pending");
    require(!Work().cancel(), group, "an empty Work was cancelled");
  }
  group.barrier().wait();
  constexpr std::int64_t rounds = 100;
  if (group.rank() > 0) {
    for (std::int64_t i = 0; i < rounds; ++i) send_number(group, i, 0, 1).wait();
    return group.barrier().wait();
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(size));
  for (std::int64_t left = rounds * (size - 1); left > 0;) {
    std::int64_t number = -1;
    Work received = recv_number(group, number, any_source, 1);
    if (left % 3 != 0) received.ready();
    if (received.cancel()) {
      require(number == -1, group, "a cancelled receive has data");
      continue;
    }
    received.wait();
    require(number == next[static_cast<std::size_t>(received.source())]++, group,
            "a message was lost by cancel()");
    --left;
  }
  require(untouched == -1, group, "a cancelled receive got data");
  group.barrier().wait();
}

}  // namespace

void check_waits(Communicator& group) {
  const auto [before, next] = neighbours(group);
  const std::int64_t mine = group.rank();
  std::int64_t theirs = -1;
  Work received = group.recv(&theirs, 1, DType::i64, before);
  require(!received.wait_for(0s), group, "wait_for(0) returned before the message was sent");
  require(!received.wait_for(1ms), group, "wait_for() returned before the message was sent");
  {
    std::stop_source source;
    const std::jthread other([&] { source.request_stop(); });
    require(
        !wait_any({&received, 1}, std::chrono::steady_clock::time_point::max(), source.get_token()),
        group, "wait_any returned an operation after a stop");
  }
  group.barrier().wait();
  Work sent = group.send(&mine, 1, DType::i64, next);
  require(received.wait_for(20s), group, "wait_for() did not see the message");
  require(received.pending() && received.complete(), group, "wait_for() took the operation");
  received.wait();
  require(theirs == before, group, "the message is another one");
  require(sent.wait_for(20s) && Work().wait_for(0s), group, "wait_for() of a complete operation");
  sent.wait();
  check_order_of_completion(group);
}

void check_tags(Communicator& group) {
  check_random_exchange(group);
  check_cancel(group);
}

}  // namespace lockstep::testing
