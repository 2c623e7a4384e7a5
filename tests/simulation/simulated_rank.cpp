#include "tests/simulation/simulated_rank.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "comm/communicator.h"
#include "comm/tcp/tcp.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/work.h"

namespace lockstep::testing {
namespace {

using detail::concat;

/// The input of a rank: small whole numbers, so that sums are exact in every order.
double input(int rank, std::size_t at, std::size_t step) {
  return static_cast<double>((static_cast<std::size_t>(rank) * 7 + at * 3 + step * 5) % 11) - 3;
}

/// An operation that has begun, with its memory.
template <class T>
class Operation {
 public:
  /// members are the world ranks of the group.
  Operation(Communicator& group, std::vector<int> members, const ScenarioStep& step,
            std::size_t number)
      : members_(std::move(members)), step_(step), number_(number), rank_(group.rank()) {
    begin(group);
  }

  /// Waits, and returns what is wrong with the result.
  std::string finish() {
    first_.wait();
    second_.wait();
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (static_cast<double>(output_[i]) != expected_[i]) {
        return concat(lockstep::name(step_.collective), " of step ", number_, ": element ", i,
                      " is ", static_cast<double>(output_[i]), ", expected ", expected_[i]);
      }
    }
    return {};
  }

 private:
  std::size_t size() const { return members_.size(); }
  double of(std::size_t member, std::size_t at) const {
    return input(members_[member], at, number_);
  }

  void fill(std::size_t count) {
    input_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      input_[i] = static_cast<T>(of(static_cast<std::size_t>(rank_), i));
    }
  }

  double reduced(std::size_t at) const {
    double result = of(0, at);
    for (std::size_t member = 1; member < size(); ++member) {
      const double next = of(member, at);
      result = step_.reduce == ReduceOp::sum   ? result + next
               : step_.reduce == ReduceOp::min ? std::min(result, next)
                                               : std::max(result, next);
    }
    return result;
  }

  template <class Value>
  void expect(std::size_t count, const Value& value) {
    expected_.resize(count);
    for (std::size_t i = 0; i < count; ++i) expected_[i] = value(i);
    output_.resize(std::max(output_.size(), count));
  }

  void begin(Communicator& group) {
    using enum Collective;
    const auto n = step_.count;
    const int root = step_.root % static_cast<int>(size());
    const auto own = static_cast<std::size_t>(rank_), from = static_cast<std::size_t>(root);
    const bool is_root = rank_ == root;
    const auto what = step_.collective;
    const bool in_parts = what == reduce_scatter || what == scatter || what == all_to_all;
    if (what != barrier && (what != scatter || is_root)) fill(in_parts ? n * size() : n);
    if (what == all_reduce || what == reduce || what == broadcast) output_ = input_;
    const auto gathered = [&](std::size_t i) { return of(i / n, i % n); };
    switch (what) {
      case all_reduce:
        expect(n, [&](std::size_t i) { return reduced(i); });
        first_ = group.all_reduce(output_.data(), n, step_.dtype, step_.reduce);
        return;
      case reduce:
        expect(n, [&](std::size_t i) { return is_root ? reduced(i) : of(own, i); });
        first_ = group.reduce(output_.data(), n, step_.dtype, step_.reduce, root);
        return;
      case broadcast:
        expect(n, [&](std::size_t i) { return of(from, i); });
        first_ = group.broadcast(output_.data(), n, step_.dtype, root);
        return;
      case all_gather:
        expect(n * size(), gathered);
        first_ = group.all_gather(input_.data(), output_.data(), n, step_.dtype);
        return;
      case reduce_scatter:
        expect(n, [&](std::size_t i) { return reduced(own * n + i); });
        first_ = group.reduce_scatter(input_.data(), output_.data(), n, step_.dtype, step_.reduce);
        return;
      case gather:
        if (is_root) expect(n * size(), gathered);
        first_ = group.gather(input_.data(), output_.data(), n, step_.dtype, root);
        return;
      case scatter:
        expect(n, [&](std::size_t i) { return of(from, own * n + i); });
        first_ = group.scatter(input_.data(), output_.data(), n, step_.dtype, root);
        return;
      case all_to_all:
        expect(n * size(), [&](std::size_t i) { return of(i / n, own * n + i % n); });
        first_ = group.all_to_all(input_.data(), output_.data(), n, step_.dtype);
        return;
      case send:
      case recv: {
        // Each rank sends to the next one.
        const auto before = (own + size() - 1) % size();
        expect(n, [&](std::size_t i) { return of(before, i); });
        first_ = group.send(input_.data(), n, step_.dtype, static_cast<int>((own + 1) % size()));
        second_ = group.recv(output_.data(), n, step_.dtype, static_cast<int>(before));
        return;
      }
      case barrier:
        first_ = group.barrier();
        return;
    }
  }

  std::vector<int> members_;
  ScenarioStep step_;
  std::size_t number_;
  int rank_;
  std::vector<T> input_;
  std::vector<T> output_;
  std::vector<double> expected_;
  Work first_;
  Work second_;
};

/// Waits for an operation that has begun, and returns what is wrong with its result.
using Finish = std::function<std::string()>;

template <class T>
Finish begin_operation(Communicator& group, std::vector<int> members, const ScenarioStep& step,
                       std::size_t number) {
  const auto operation = std::make_shared<Operation<T>>(group, std::move(members), step, number);
  return [operation] { return operation->finish(); };
}

/// The error of a rank's own program.
struct ProgramError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class RankProgram {
 public:
  RankProgram(const Scenario& scenario, int rank, bool with_fault, SimulatedMeeting& meeting,
              RankOutcome& outcome, const std::function<void()>& on_fault)
      : scenario_(scenario),
        rank_(rank),
        meeting_(meeting),
        has_fault_(with_fault && scenario.fault.rank == rank),
        outcome_(outcome),
        on_fault_(on_fault) {}

  void run() {
    const messages::Options options{
        .timeout = scenario_.timeout,
        .threads_per_rank = 2,
        .cores = 1,
        .algorithm = scenario_.algorithm,
        .progress = scenario_.progress_thread ? ProgressMode::thread : ProgressMode::wait,
        .transport = TransportKind::tcp,
        .host = concat("h", scenario_.hosts[static_cast<std::size_t>(rank_)]),
        .heartbeat = scenario_.heartbeat,
        .records = false,
        .expected_size = scenario_.ranks};
    world_ = scenario_.over_tcp ? tcp::create(options, meeting()) : mpi::create(options);
    outcome_.created = true;
    try {
      if (scenario_.splits) split_ = world_->split(rank_ % 2, rank_);
      for (std::size_t i = 0; i < scenario_.steps.size(); ++i) {
        if (run_step(i)) break;
      }
      while (!pending_.empty()) finish_first();
    } catch (const CommError& error) {
      outcome_.ended_at = SimulatedKernel::active->scheduler().now();
      expect_same_cause_later(error);
      throw;
    }
  }

 private:
  tcp::Meeting meeting() {
    tcp::Meeting own{.rank = rank_, .size = scenario_.ranks};
    if (scenario_.known_port) {
      own.port = known_port;
      own.token = meeting_.token;
      const auto at = address_of_host(scenario_.hosts.front(), known_port);
      control::Offer offer{.token = meeting_.token, .count = 1};
      offer.addresses[0] = *control::Address::of(reinterpret_cast<const sockaddr*>(&at));
      own.find = [offer] { return offer; };
    } else {
      own.publish = [this](const control::Offer& offer) { meeting_.offer = offer; };
      own.find = [this] {
        if (!meeting_.offer) throw CommError("rank 0 has made no offer");
        return *meeting_.offer;
      };
    }
    return own;
  }

  /// True if the rank leaves before this step.
  bool run_step(std::size_t number) {
    auto step = scenario_.steps[number];
    auto& kernel = *SimulatedKernel::active;
    if (step.work.count() > 0) kernel.scheduler().sleep(kernel.random_time(step.work));
    if (has_fault_ && scenario_.fault.step == number) {
      switch (scenario_.fault.kind) {
        case FaultKind::program_error:
          on_fault_();
          world_->fail("lost its data");
          throw ProgramError("lost its data");
        case FaultKind::mismatch:
          on_fault_();
          step.collective =
              step.collective == Collective::barrier ? Collective::all_gather : Collective::barrier;
          break;
        case FaultKind::hang:
          on_fault_();
          kernel.scheduler().sleep(hang_time(scenario_));
          break;
        case FaultKind::leave:
          on_fault_();
          return true;
        default:
          break;
      }
    }
    auto& group = step.in_split ? *split_ : *world_;
    std::vector<int> members;
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      if (!step.in_split || rank % 2 == rank_ % 2) members.push_back(rank);
    }
    const auto begin = step.dtype == DType::i32   ? begin_operation<std::int32_t>
                       : step.dtype == DType::i64 ? begin_operation<std::int64_t>
                       : step.dtype == DType::f32 ? begin_operation<float>
                                                  : begin_operation<double>;
    pending_.push_back(begin(group, members, step, number));
    while (pending_.size() > (step.overlaps ? 1U : 0U)) finish_first();
    return false;
  }

  /// Every later operation of a failed world raises the first cause again.
  void expect_same_cause_later(const CommError& first) {
    auto& kernel = *SimulatedKernel::active;
    kernel.scheduler().sleep(kernel.random_time(scenario_.heartbeat));
    try {
      world_->barrier().wait();
      outcome_.wrong = "an operation succeeds after the world has failed";
    } catch (const Error& later) {
      if (later.cause() == first.cause()) return;
      outcome_.wrong = concat("first cause '", first.cause(), "', and later '", later.cause(), "'");
    }
  }

  void finish_first() {
    const auto wrong = pending_.front()();
    if (outcome_.wrong.empty()) outcome_.wrong = wrong;
    pending_.pop_front();
  }

  const Scenario& scenario_;
  int rank_;
  SimulatedMeeting& meeting_;
  bool has_fault_;
  RankOutcome& outcome_;
  const std::function<void()>& on_fault_;
  std::shared_ptr<Communicator> world_;
  std::shared_ptr<Communicator> split_;
  std::deque<Finish> pending_;
};

}  // namespace

void run_rank(const Scenario& scenario, int rank, bool with_fault, SimulatedMeeting& meeting,
              RankOutcome& outcome, const std::function<void()>& on_fault) {
  auto& kernel = *SimulatedKernel::active;
  const auto fail = [&](const std::exception& error) {
    outcome.state = RankOutcome::State::failed;
    outcome.text = error.what();
    outcome.cause = error.what();
    if (outcome.ended_at == Time(0)) outcome.ended_at = kernel.scheduler().now();
  };
  try {
    RankProgram(scenario, rank, with_fault, meeting, outcome, on_fault).run();
    SimulatedKernel::process().make_exit_calls(0);
    outcome.state = RankOutcome::State::succeeded;
    outcome.ended_at = kernel.scheduler().now();
  } catch (const Error& error) {
    fail(error);
    outcome.named = error.rank();
    outcome.timeout = error.kind() == ErrorKind::timeout;
    if (!error.cause().empty()) outcome.cause = error.cause();
  } catch (const std::exception& error) {
    fail(error);
  }
  auto& process = SimulatedKernel::process();
  // After a failure, operations are kept with their world until the process ends.
  if (outcome.state == RankOutcome::State::failed) return process.make_exit_calls(1);
  if (!process.files().empty() && outcome.wrong.empty()) {
    outcome.wrong = concat(process.files().size(), " open files at its end");
  }
  if (process.running_threads() > 1 && outcome.wrong.empty()) {
    outcome.wrong = concat(process.running_threads() - 1, " threads at its end");
  }
}

void run_stranger(int host_of_rank_0, std::uint16_t first_port, const std::string& bytes) {
  std::vector<detail::Descriptor> sockets;
  for (auto port = first_port; port < first_port + 3; ++port) {
    const auto to = address_of_host(host_of_rank_0, port);
    auto& socket = sockets.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
    ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
    pollfd writable{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    ::poll(&writable, 1, 100);
    ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

}  // namespace lockstep::testing
