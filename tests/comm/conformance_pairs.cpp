#include <chrono>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "lockstep/error.h"
#include "tests/comm/conformance.h"
#include "tests/comm/oracle.h"

// Point-to-point messages and shared memory of two ranks.

namespace lockstep::testing {

using lockstep::detail::concat;

void check_places(Communicator& group) {
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto memory = group.allocate(64);
  const std::int64_t ordinary = 0;
  const auto place = group.place_of(memory.get());
  if (group.place_of(&ordinary)) throw std::runtime_error("place_of: found ordinary memory");
  if (!place) {
    try {
      group.at_place(0);
    } catch (const CommError&) {
      return;
    }
    throw std::runtime_error("at_place: found memory that is not shared");
  }
  memory.get()[63] = static_cast<std::byte>(rank + 1);
  std::vector<std::uint64_t> places(static_cast<std::size_t>(group.size()));
  group.all_gather(&*place, places.data(), 1, DType::i64).wait();
  for (std::size_t other = 0; other < places.size(); ++other) {
    const auto got = group.at_place(places[other])[63];
    if (got != static_cast<std::byte>(other + 1)) {
      throw std::runtime_error(
          concat("at_place: rank ", rank, " does not see what rank ", other, " has written"));
    }
  }
  group.barrier().wait();
}

void check_messages(Communicator& group) {
  const int size = group.size();
  const int next = (group.rank() + 1) % size;
  const int before = (group.rank() + size - 1) % size;
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
  // Many outstanding messages, from all ranks to rank 0, received in another order than sent.
  std::vector<std::int64_t> numbers(20);
  std::iota(numbers.begin(), numbers.end(), 100 * group.rank());
  std::vector<Work> works;
  for (auto& number : numbers) works.push_back(group.send(&number, 1, DType::i64, 0));
  if (group.rank() == 0) {
    for (int from = size - 1; from >= 0; --from) {
      for (int i = 0; i < 20; ++i) {
        std::int64_t got = -1;
        group.recv(&got, 1, DType::i64, from).wait();
        if (got != 100 * from + i) {
          throw std::runtime_error(concat("recv ", i, " from ", from, " got ", got));
        }
      }
    }
  }
  for (auto& work : works) work.wait();
}

namespace {

using namespace std::chrono_literals;

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

}  // namespace

void check_waits(Communicator& group) {
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
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

}  // namespace lockstep::testing
