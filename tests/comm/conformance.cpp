#include "tests/comm/conformance.h"

#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "tests/comm/oracle.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

struct Case {
  DType dtype;
  std::size_t count;
  Place place;
  int salt;
  Sums sums = {};

  std::string text(const Communicator& group, std::string_view collective) const {
    return concat(collective, " ", name(dtype), " count ", count, " of rank ", group.rank(), " of ",
                  group.size(), place == Place::group ? " in group memory" : "");
  }
};

/// Some ranks in group memory and some elsewhere, if the case asks for neither of both.
Place place_of(const Case& c, const Communicator& group, bool mixed) {
  return mixed && group.rank() % 2 == 1 ? Place::elsewhere : c.place;
}

/// The ranks' inputs, or what each host makes of its own where there are several.
std::vector<Bytes> by_hosts(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                            const Case& c) {
  std::vector<int> hosts;  // in the order of their first ranks
  std::vector<std::vector<Bytes>> of_host;
  for (std::size_t rank = 0; rank < c.sums.hosts.size(); ++rank) {
    const auto found = std::ranges::find(hosts, c.sums.hosts[rank]);
    const auto host = static_cast<std::size_t>(found - hosts.begin());
    if (found == hosts.end()) {
      hosts.push_back(c.sums.hosts[rank]);
      of_host.emplace_back();
    }
    of_host[host].push_back(inputs[rank]);
  }
  if (of_host.size() < 2) return inputs;
  std::vector<Bytes> sums;
  for (const auto& own : of_host) sums.push_back(reduce_all(dtype, op, own, c.count));
  return sums;
}

/// Short inputs are eager: each rank gets them with the announcements.
bool is_short(const Case& c, std::size_t ranks) {
  return c.count * size_of(c.dtype) <= std::min<std::size_t>(2048, 65536 / ranks);
}

Bytes reduced(const std::vector<Bytes>& inputs, const Case& c, ReduceOp op) {
  const bool floats = c.dtype == DType::f32 || c.dtype == DType::f64;
  if (c.sums.ring && floats && !is_short(c, inputs.size()))
    return reduce_around_the_ring(c.dtype, op, inputs, c.count);
  const bool average = op == ReduceOp::avg;
  const auto without_average = average ? ReduceOp::sum : op;
  const auto sums = floats ? by_hosts(c.dtype, without_average, inputs, c) : inputs;
  if (sums.size() == inputs.size()) return reduce_all(c.dtype, op, inputs, c.count);
  Bytes whole = reduce_all(c.dtype, without_average, sums, c.count);
  return average ? multiplied(c.dtype, whole, 1 / static_cast<double>(inputs.size())) : whole;
}

/// The same of a reduce_scatter of so many elements. It sums host by host where each host has
/// consecutive ranks.
Bytes reduced_parts(const std::vector<Bytes>& inputs, Case c, std::size_t count, ReduceOp op) {
  c.count = count;
  c.sums.ring = false;
  std::size_t runs = 0;  // of ranks on the same host
  for (std::size_t rank = 0; rank < c.sums.hosts.size(); ++rank)
    runs += rank == 0 || c.sums.hosts[rank] != c.sums.hosts[rank - 1] ? 1 : 0;
  if (runs > std::set(c.sums.hosts.begin(), c.sums.hosts.end()).size()) c.sums.hosts.clear();
  return reduced(inputs, c, op);
}

Bytes reduced_halves(std::vector<Bytes> inputs, const Case& c, Wire wire, ReduceOp op) {
  if (std::set(c.sums.hosts.begin(), c.sums.hosts.end()).size() < 2)
    return reduce_rounded(wire, op, inputs, c.count);
  // Each rank's part is clipped; then halves carry the hosts' parts of the mean.
  for (auto& input : inputs) {
    auto* values = reinterpret_cast<float*>(input.data());
    for (std::size_t i = 0; wire.clip > 0 && i < c.count; ++i)
      values[i] = std::clamp(values[i], -wire.clip, wire.clip);
  }
  wire.clip = 0;
  auto sums = by_hosts(DType::f32, ReduceOp::sum, inputs, c);
  const auto ranks = static_cast<double>(inputs.size());
  const auto hosts = static_cast<double>(sums.size());
  for (auto& sum : sums) sum = multiplied(DType::f32, sum, hosts / ranks);
  const Bytes whole = reduce_rounded(wire, op, sums, c.count);
  return op == ReduceOp::sum ? multiplied(DType::f32, whole, ranks / hosts) : whole;
}

const Bytes& own_bytes(const Communicator& group, const std::vector<Bytes>& of_ranks) {
  return of_ranks[static_cast<std::size_t>(group.rank())];
}

void all_reduce(Communicator& group, const Case& c, ReduceOp op, bool mixed) {
  const auto inputs = make_inputs(c.dtype, c.count, group.size(), c.salt);
  const Buffer data(group, place_of(c, group, mixed), own_bytes(group, inputs));
  group.all_reduce(data.data(), c.count, c.dtype, op).wait();
  data.expect(reduced(inputs, c, op), c.text(group, concat("all_reduce ", name(op))));
}

/// Values at the limits of the half formats: not finite, not normal, or rounded to such values.
Bytes make_special(std::size_t count, int rank) {
  constexpr auto inf = std::numeric_limits<float>::infinity();
  constexpr float specials[] = {NAN,      inf,    -inf,  65504.0f, 65519.0f,
                                65520.0f, -7e4f,  3e38f, 6e-8f,    -2e-8f,
                                5.9e-5f,  1e-40f, -0.0f, 1.0f,     -3.14159f};
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    // Every second element is special on one rank at most.
    const auto turn = i / 2 + static_cast<std::size_t>(i % 2) * static_cast<std::size_t>(rank);
    const bool special = i % 2 == 1 || i / 2 % 7 == static_cast<std::size_t>(rank);
    values[i] = special ? specials[turn % std::size(specials)] : 0.1f * static_cast<float>(i % 97);
  }
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// The same NaN for every NaN.
void unify_nans(std::byte* floats, std::size_t count) {
  auto* values = reinterpret_cast<float*>(floats);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(values[i])) values[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

void all_reduce_halves(Communicator& group, const Case& c, const Wire& wire, ReduceOp op,
                       const std::vector<Bytes>& inputs) {
  const Buffer data(group, c.place, own_bytes(group, inputs));
  group.all_reduce(data.data(), c.count, op, wire).wait();
  unify_nans(data.data(), c.count);
  auto expected = reduced_halves(inputs, c, wire, op);
  unify_nans(expected.data(), c.count);
  data.expect(expected, c.text(group, concat("all_reduce as ", name(wire.dtype))));
}

/// Each rank passes a factor of its own.
double factor_of(int rank) { return 0.3 * (rank + 1); }

std::vector<Bytes> multiplied_by_factors(DType dtype, std::vector<Bytes> inputs) {
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    inputs[rank] = multiplied(dtype, inputs[rank], factor_of(static_cast<int>(rank)));
  return inputs;
}

/// Root's buffer has the reduction, the others' are unchanged.
void reduce(Communicator& group, Case c, Reduction reduction, int root, bool mixed) {
  auto inputs = make_inputs(c.dtype, c.count, group.size(), c.salt);
  const Buffer data(group, place_of(c, group, mixed), own_bytes(group, inputs));
  group.reduce(data.data(), c.count, c.dtype, reduction, root).wait();
  const auto what = c.text(group, concat("reduce ", name(reduction.op), " to ", root));
  if (group.rank() != root) return data.expect(own_bytes(group, inputs), what);
  if (reduction.op == ReduceOp::premultiplied_sum) inputs = multiplied_by_factors(c.dtype, inputs);
  c.sums.ring = false;
  data.expect(reduced(inputs, c, reduction.op), what);
}

/// Sums of inputs that each rank multiplies by its factor.
void premultiplied(Communicator& group, const Case& c) {
  const auto reduction = premultiplied_sum(factor_of(group.rank()));
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto inputs = make_inputs(c.dtype, c.count * ranks, group.size(), c.salt);
  const auto products = multiplied_by_factors(c.dtype, inputs);
  const Buffer input(group, c.place, inputs[rank]);
  const Buffer output(group, c.place, Bytes(c.count * size_of(c.dtype)));
  group.reduce_scatter(input.data(), output.data(), c.count, c.dtype, reduction).wait();
  const auto sums = reduced_parts(products, c, c.count * ranks, ReduceOp::sum);
  output.expect(slice(sums, c.dtype, rank * c.count, c.count),
                c.text(group, "reduce_scatter premultiplied_sum"));
  input.expect(inputs[rank], c.text(group, "the input of reduce_scatter premultiplied_sum"));
  Case whole = c;
  whole.count *= ranks;
  group.all_reduce(input.data(), whole.count, c.dtype, reduction).wait();
  input.expect(reduced(products, whole, ReduceOp::premultiplied_sum),
               c.text(group, "all_reduce premultiplied_sum"));
  reduce(group, c, reduction, group.size() - 1, false);
}

void broadcast(Communicator& group, const Case& c, int root) {
  const auto inputs = make_inputs(c.dtype, c.count, group.size(), c.salt);
  const Buffer data(group, c.place, own_bytes(group, inputs));
  group.broadcast(data.data(), c.count, c.dtype, root).wait();
  data.expect(inputs[static_cast<std::size_t>(root)],
              c.text(group, concat("broadcast from ", root)));
}

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Different for each rank if they vary, some of them 0.
std::vector<std::size_t> counts_of(const Communicator& group, const Case& c, bool varying) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < group.size(); ++rank) {
    counts.push_back(varying ? c.count * static_cast<std::size_t>((rank + 1) % 3) / 2 : c.count);
  }
  return counts;
}

std::vector<Bytes> make_parts(const Case& c, const std::vector<std::size_t>& counts) {
  std::vector<Bytes> parts;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back(make_input(c.dtype, counts[rank], static_cast<int>(rank), c.salt));
  }
  return parts;
}

void reduce_scatter(Communicator& group, const Case& c, ReduceOp op, bool varying) {
  const auto counts = counts_of(group, c, varying);
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto inputs = make_inputs(c.dtype, total, group.size(), c.salt);
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::size_t begin =
      std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0});
  const Buffer input(group, c.place, inputs[rank]);
  const Buffer output(group, c.place, Bytes(counts[rank] * size_of(c.dtype)));
  const auto parts = varying ? Parts(counts) : Parts(c.count);
  group.reduce_scatter(input.data(), output.data(), parts, c.dtype, op).wait();
  output.expect(slice(reduced_parts(inputs, c, total, op), c.dtype, begin, counts[rank]),
                c.text(group, concat("reduce_scatter ", name(op))));
  input.expect(inputs[rank], c.text(group, "the input of reduce_scatter"));
}

/// To the root, or to all ranks where it is -1. Mixed: every second output is in ordinary memory.
void gather(Communicator& group, const Case& c, int root, bool varying, bool mixed = false) {
  const auto counts = counts_of(group, c, varying);
  const auto inputs = make_parts(c, counts);
  const Buffer input(group, c.place, own_bytes(group, inputs));
  const bool has_output = root < 0 || group.rank() == root;
  const Bytes expected = has_output ? joined(inputs) : Bytes();
  const auto place = mixed && group.rank() % 2 == 0 ? Place::elsewhere : c.place;
  const Buffer output(group, place, Bytes(expected.size()));
  auto* const to = has_output ? output.data() : nullptr;
  const auto parts = varying ? Parts(counts) : Parts(c.count);
  (root < 0 ? group.all_gather(input.data(), to, parts, c.dtype)
            : group.gather(input.data(), to, parts, c.dtype, root))
      .wait();
  output.expect(expected, c.text(group, concat(root < 0 ? "all_gather" : "gather", " to ", root,
                                               varying ? " of varying counts" : "")));
}

void scatter(Communicator& group, const Case& c, int root, bool varying) {
  const auto counts = counts_of(group, c, varying);
  const auto inputs = make_parts(c, counts);
  const auto& mine = own_bytes(group, inputs);
  const bool is_root = group.rank() == root;
  const Buffer input(group, c.place, is_root ? joined(inputs) : Bytes());
  const Buffer output(group, c.place, Bytes(mine.size()));
  const auto* const from = is_root ? input.data() : nullptr;
  const auto parts = varying ? Parts(counts) : Parts(c.count);
  group.scatter(from, output.data(), parts, c.dtype, root).wait();
  output.expect(
      mine,
      c.text(group, concat(varying ? "scatter of varying counts from " : "scatter from ", root)));
}

/// The part of one rank for another has a length of its own if they vary; some are empty.
void all_to_all(Communicator& group, const Case& c, bool varying) {
  const auto part = [&](int from, int to) {
    const auto count =
        varying ? c.count * static_cast<std::size_t>((from + 2 * to) % 4) / 3 : c.count;
    return make_input(c.dtype, count, 31 * from + to, c.salt);
  };
  std::vector<std::size_t> sent, received;
  std::vector<Bytes> in, expected;
  for (int other = 0; other < group.size(); ++other) {
    in.push_back(part(group.rank(), other));
    expected.push_back(part(other, group.rank()));
    sent.push_back(in.back().size() / size_of(c.dtype));
    received.push_back(expected.back().size() / size_of(c.dtype));
  }
  const Buffer input(group, c.place, joined(in));
  const Buffer output(group, place_of(c, group, varying), Bytes(joined(expected).size()));
  (varying ? group.all_to_all(input.data(), output.data(), sent, received, c.dtype)
           : group.all_to_all(input.data(), output.data(), c.count, c.dtype))
      .wait();
  const auto* what = varying ? "all_to_all of varying counts" : "all_to_all";
  output.expect(joined(expected), c.text(group, what));
  input.expect(joined(in), c.text(group, concat("the input of ", what)));
}

void check_case(Communicator& group, const Case& c) {
  const int last = group.size() - 1;
  for (const auto op : all_reduce_ops) {
    if (has_reduction(c.dtype, op)) all_reduce(group, c, op, false);
  }
  reduce(group, c, ReduceOp::sum, last, true);
  if (has_reduction(c.dtype, ReduceOp::avg)) reduce(group, c, ReduceOp::avg, 0, false);
  if (is_floating(c.dtype)) premultiplied(group, c);
  all_reduce(group, c, ReduceOp::sum, true);
  if (c.dtype == DType::f32) {
    const auto inputs = make_inputs(DType::f32, c.count, group.size(), c.salt);
    std::vector<Bytes> special;
    for (int rank = 0; rank < group.size(); ++rank) special.push_back(make_special(c.count, rank));
    const Wire f16{.dtype = DType::f16, .predivide = true};
    all_reduce_halves(group, c, f16, ReduceOp::avg, inputs);
    all_reduce_halves(group, c, {.dtype = DType::bf16, .clip = 2.5f}, ReduceOp::sum, inputs);
    all_reduce_halves(group, c, f16, ReduceOp::avg, special);
    all_reduce_halves(group, c, {.dtype = DType::f16, .clip = 6.6e4f}, ReduceOp::avg, special);
    all_reduce_halves(group, c, {.dtype = DType::bf16}, ReduceOp::avg, special);
  }
  broadcast(group, c, 0);
  broadcast(group, c, last);
  gather(group, c, /*root=*/-1, false);
  gather(group, c, /*root=*/-1, true);
  gather(group, c, /*root=*/-1, false, true);
  reduce_scatter(group, c, ReduceOp::sum, false);
  reduce_scatter(group, c, has_reduction(c.dtype, ReduceOp::avg) ? ReduceOp::avg : ReduceOp::bxor,
                 true);
  gather(group, c, last, false);
  scatter(group, c, last, false);
  all_to_all(group, c, false);
  // Parts of different lengths depend on the size of an element only.
  if (c.dtype == DType::f32 || c.dtype == DType::i16) {
    gather(group, c, last, true);
    scatter(group, c, last, true);
    all_to_all(group, c, true);
  }
  group.barrier().wait();
}

}  // namespace

void check_collectives(Communicator& group, const Sums& sums) {
  int salt = 0;
  for (const auto dtype : all_dtypes) {
    for (const std::size_t count : {0, 1, 7, 1000, 5003}) {
      for (const auto place : {Place::group, Place::elsewhere}) {
        check_case(group, {dtype, count, place, ++salt, sums});
      }
    }
  }
  // Longer than every staging area, and not a multiple of anything.
  for (const auto place : {Place::group, Place::elsewhere}) {
    check_case(group, {DType::f32, 200'003, place, ++salt, sums});
  }
}

/// Outstanding all_reduces with these numbers, which select their inputs. Each rank has its own
/// delays between them, its own places of buffers, and waits in its own order.
static void check_outstanding(Communicator& group, const Sums& sums, int first, int operations,
                              std::mt19937& random) {
  constexpr std::size_t counts[] = {140'001, 3, 3'000, 57};
  const auto count_of = [&](int i) { return counts[(first + i) % 4]; };
  std::vector<std::vector<Bytes>> inputs;
  std::vector<Buffer> buffers;
  std::vector<Work> works;
  for (int i = 0; i < operations; ++i) {
    const auto place = random() % 2 == 0 ? Place::group : Place::elsewhere;
    inputs.push_back(make_inputs(DType::f32, count_of(i), group.size(), first + i));
    buffers.emplace_back(group, place, own_bytes(group, inputs.back()));
    const SourceScope of_bucket(group, {.content = Source::Content::gradients, .bucket = i});
    works.push_back(
        group.all_reduce(buffers.back().data(), count_of(i), DType::f32, ReduceOp::sum));
    for (auto spins = random() % 20'000; spins > 0; --spins) (void)random();
  }
  for (int i = 0; i < operations; ++i) {
    works[static_cast<std::size_t>((i * 7 + group.rank() * 13) % operations)].wait();
  }
  for (int i = 0; i < operations; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const Case c{DType::f32, count_of(i), Place::group, /*salt=*/0, sums};
    buffers[at].expect(reduced(inputs[at], c, ReduceOp::sum),
                       concat("all_reduce ", first + i, " in flight"));
  }
}

void check_in_flight(Communicator& group, const Sums& sums) {
  std::mt19937 random(static_cast<unsigned>(group.rank()));
  check_outstanding(group, sums, 0, 40, random);  // more than a ring holds
  for (int first = 40; first < 76; first += 3) check_outstanding(group, sums, first, 3, random);
}

void check_split(Communicator& group, const Sums& sums) {
  // Evens and odds, in reverse order.
  const auto half = group.split(group.rank() % 2, -group.rank());
  const int size = (group.size() + (group.rank() % 2 == 0 ? 1 : 0)) / 2;
  const int position = size - 1 - group.rank() / 2;
  require(half->size() == size && half->rank() == position, group,
          concat("split: got rank ", half->rank(), " of ", half->size(), ", expected ", position,
                 " of ", size));
  // Both groups have outstanding operations at once; a wait in one advances the other.
  std::int64_t in_half = group.rank();
  std::int64_t in_all = group.rank();
  auto first = half->all_reduce(&in_half, 1, DType::i64, ReduceOp::sum);
  auto second = group.all_reduce(&in_all, 1, DType::i64, ReduceOp::sum);
  if (group.rank() % 2 == 0) {
    second.wait();
    first.wait();
  } else {
    first.wait();
    second.wait();
  }
  std::int64_t half_sum = 0;
  for (int rank = group.rank() % 2; rank < group.size(); rank += 2) half_sum += rank;
  const std::int64_t sum = std::int64_t{group.size()} * (group.size() - 1) / 2;
  require(
      in_half == half_sum && in_all == sum, group,
      concat("split: got sums ", in_half, " and ", in_all, ", expected ", half_sum, " and ", sum));
  require(group.split(group.rank() == 0 ? 0 : -1, 0) != nullptr || group.rank() != 0, group,
          "split: got no group");
  Sums of_half{.ring = sums.ring};
  for (auto rank = static_cast<int>(sums.hosts.size()) - 1; rank >= 0; --rank) {
    if (rank % 2 == group.rank() % 2)
      of_half.hosts.push_back(sums.hosts[static_cast<std::size_t>(rank)]);
  }
  check_case(*half, {DType::f32, 70'001, Place::elsewhere, /*salt=*/1, of_half});
  for (int i = 0; i < 50; ++i) group.split(0, 0)->barrier().wait();
}

void check_backend(Communicator& group, const Sums& sums) {
  check_collectives(group, sums);
  check_in_flight(group, sums);
  check_places(group);
  check_split(group, sums);
  check_messages(group);
  check_tags(group);
  check_waits(group);
  check_denormals(group);
}

}  // namespace lockstep::testing
