#include "comm/announcement.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/text.h"

namespace lockstep::inline v0_2::detail {
namespace {

std::string describe(const MessageTerms& terms) {
  return concat(plural(terms.count, "element"), " of ", name(terms.dtype), " with tag ", terms.tag);
}

}  // namespace

std::string describe_difference(std::uint64_t number, int from, int to,
                                const MessageTerms& expected, const MessageTerms& got) {
  return concat("message #", number, " from rank ", from, " to rank ", to,
                " differs: the receiver expected ", describe(expected), ", got ", describe(got),
                expected.tag == got.tag
                    ? ""
                    : "; this backend matches the messages of two ranks in order: receive them in "
                      "the order in which they were sent");
}

std::string no_memory_for_early(std::size_t bytes, std::uint32_t tag, int from) {
  return concat("no memory for the copy of a message of ", bytes, " bytes with tag ", tag,
                " from rank ", from,
                " that no recv expects yet; receive messages in the order in which they are sent");
}

namespace {

/// One round of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// 2014).
std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t z = state + 0x9e3779b97f4a7c15 + value;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// Equal for equal operations, different for others except for hash collisions.
std::uint64_t fingerprint(const Operation& operation) {
  const std::uint64_t kind = static_cast<std::uint64_t>(operation.collective) |
                             static_cast<std::uint64_t>(operation.reduce) << 8 |
                             static_cast<std::uint64_t>(operation.dtype) << 16 |
                             static_cast<std::uint64_t>(static_cast<std::uint32_t>(operation.peer))
                                 << 24;
  // mix() adds its arguments: without the factors, differences of two fields could cancel.
  const auto& issue = operation.issue;
  const std::uint64_t scattered =
      kind * 0xd6e8feb86659fd93 + std::bit_cast<std::uint64_t>(issue.source) * 0xa0761d6478bd642f;
  std::uint64_t state = mix(scattered, operation.count);
  if (operation.wire) {
    const auto& wire = *operation.wire;
    state = mix(state, std::bit_cast<std::uint32_t>(wire.clip) |
                           static_cast<std::uint64_t>(wire.dtype) << 32 |
                           static_cast<std::uint64_t>(wire.predivide ? 1 : 0) << 40);
  }
  if (operation.has_own_counts()) {
    state = mix(state, 1);  // the counts differ between ranks
  } else {
    for (const auto count : operation.counts) state = mix(state, count);
  }
  if (issue.source.content == Source::Content::refusal) return state;  // the shape is a text
  for (const auto extent : issue.shape) state = mix(state, static_cast<std::uint64_t>(extent));
  return state;
}

/// "all_reduce sum float32 [20, 1, 5, 5]", for error texts.
std::string operation_text(const Announcement& announcement) {
  const auto collective = static_cast<Collective>(announcement.collective);
  std::string text(name(collective));
  if (collective == Collective::barrier) return text;
  if (collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
      collective == Collective::reduce) {
    text += concat(" ", name(static_cast<ReduceOp>(announcement.reduce)));
  }
  text += concat(" ", name(static_cast<DType>(announcement.dtype)));
  if (announcement.wire > 0) {
    text += concat(" as ", name(static_cast<DType>(announcement.wire - 1)));
  }
  if (announcement.peer >= 0) text += concat(" root ", announcement.peer);
  const std::size_t dimensions = announcement.dimensions;
  if (dimensions == 0) return text + concat(" of ", plural(announcement.count, "element"));
  constexpr std::size_t most = Announcement::most_dimensions;
  const auto shown = std::span(announcement.shape).first(std::min(dimensions, most));
  return concat(text, " [", joined(shown, ", "), dimensions > most ? ", …]" : "]");
}

bool is_refusal(const Announcement& announcement) {
  return announcement.source.content == Source::Content::refusal;
}

/// operation_text(), followed by the source of the operation.
std::string describe(const Announcement& announcement) {
  if (is_refusal(announcement)) {
    const auto* const text = reinterpret_cast<const char*>(announcement.shape);
    return concat(name(static_cast<Collective>(announcement.source.number)),
                  " with arguments that it refused (",
                  std::string_view(text, ::strnlen(text, sizeof(announcement.shape))), ")");
  }
  const auto source = to_text(announcement.source);
  return concat(operation_text(announcement), source.empty() ? "" : " for ", source);
}

/// Whether two operations of the program itself differ in their tensors only.
bool differ_in_tensors(const Announcement& a, const Announcement& b) {
  return a.source == Source() && b.source == Source() && a.collective == b.collective &&
         a.reduce == b.reduce && a.peer == b.peer && a.wire == b.wire;
}

/// The remedy for operations that differ. same_text: they have the same description.
std::string remedy(const Announcement& one, const Announcement& other, bool same_text) {
  const auto& got = one.source;
  const auto& expected = other.source;
  if (differ_in_tensors(one, other)) {
    if (same_text) return "pass equal counts, shapes and options on all ranks";
    const auto collective = static_cast<Collective>(one.collective);
    const bool in_parts = collective != Collective::all_reduce &&
                          collective != Collective::reduce && collective != Collective::broadcast;
    return concat(
        "issue the same operations in the same order on all ranks, with tensors of equal shape and "
        "dtype",
        in_parts ? concat("; for parts that differ, the ", name(collective), " with counts") : "");
  }
  if (got.content == Source::Content::refusal) {
    return "pass the expected arguments on that rank, whose own error has the whole text";
  }
  if (got.content == Source::Content::backward || expected.content == Source::Content::backward) {
    return "let the loss of every rank use the results of the same differentiable collectives, and "
           "run its backward on every rank";
  }
  const bool of_wrappers =
      got.owner != Source::Owner::none && expected.owner != Source::Owner::none;
  const bool same = got.owner == expected.owner && got.number == expected.number;
  return of_wrappers && !same ? "construct and use wrappers in the same order on all ranks"
                              : "issue the same operations in the same order on all ranks";
}

}  // namespace

void announce(Announcement& announcement, const Operation& operation) {
  if (operation.issue.part_of != nullptr) return announce(announcement, *operation.issue.part_of);
  announcement.fingerprint = fingerprint(operation);
  announcement.source = operation.issue.source;
  announcement.count =
      operation.counts.empty()
          ? operation.count
          : operation.part_begin(static_cast<int>(operation.input_counts().size()));
  announcement.peer = operation.peer;
  announcement.collective = static_cast<std::uint8_t>(operation.collective) & 0xf;
  announcement.reduce = static_cast<std::uint8_t>(operation.reduce) & 0xf;
  announcement.dtype = static_cast<std::uint8_t>(operation.dtype);
  announcement.wire =
      operation.wire ? static_cast<std::uint8_t>(1 + static_cast<int>(operation.wire->dtype)) : 0;
  const std::size_t dimensions = operation.issue.shape.size();
  constexpr std::size_t most = Announcement::most_dimensions;
  announcement.dimensions = static_cast<std::uint8_t>(std::min(dimensions, most + 1));
  std::copy_n(operation.issue.shape.begin(), std::min(dimensions, most), announcement.shape);
}

std::string of_group(int number, std::span<const int> ranks) {
  if (number == 0) return {};
  const auto members = ranks.empty() ? std::string() : concat(" (", rank_list(ranks), ")");
  return concat(" of group ", number, members);
}

std::string describe_difference(const Operation& operation, int group, std::span<const int> ranks,
                                std::string_view what) {
  const auto* const whole = operation.issue.part_of.get();
  return concat("collective #", operation.announced().sequence,
                whole != nullptr ? of_group(whole->group, {}) : of_group(group, ranks),
                " differs between ranks: ", what);
}

std::optional<Difference> difference(std::span<const Announcement* const> announcements,
                                     std::span<const int> ranks) {
  const auto alike = [&](const Announcement* announcement) {
    return std::ranges::count(announcements, announcement->fingerprint, &Announcement::fingerprint);
  };
  if (alike(announcements[0]) == std::ssize(announcements)) return std::nullopt;

  // The most frequent announcement is the expected one; of equally frequent ones, the first. A
  // refusal is it only if there are no others.
  const auto votes = [&](const auto* one) { return is_refusal(*one) ? 0 : alike(one); };
  const auto expected = static_cast<std::size_t>(
      std::ranges::max_element(announcements, {}, votes) - announcements.begin());
  std::size_t odd = 0;
  while (announcements[odd]->fingerprint == announcements[expected]->fingerprint) ++odd;
  const std::string got = describe(*announcements[odd]);
  const std::string wanted = describe(*announcements[expected]);
  return Difference{
      .rank = ranks[odd],
      .text = concat("rank ", ranks[odd], " got ", got,
                     got == wanted ? " with other counts, dimensions or wire" : "", ", expected ",
                     wanted, " as on rank ", ranks[expected], "; ",
                     remedy(*announcements[odd], *announcements[expected], got == wanted))};
}

std::optional<Difference> difference_of_counts(
    const Operation& operation, int own, std::span<const int> ranks,
    const std::function<SentAndExpected(int member)>& theirs) {
  const auto between = [&](int from, int to, std::uint64_t sent,
                           std::uint64_t expected) -> std::optional<Difference> {
    if (sent == expected) return std::nullopt;
    const int sender = ranks[static_cast<std::size_t>(from)];
    const int receiver = ranks[static_cast<std::size_t>(to)];
    return Difference{
        .rank = sender,
        .text =
            concat("all_to_all got ", plural(sent, "element"), " from rank ", sender, " for rank ",
                   receiver, ", expected ", expected, " as in the output of rank ", receiver,
                   "; pass the same count in input_counts of the one and output_counts of the "
                   "other")};
  };
  for (int member = 0; member < static_cast<int>(ranks.size()); ++member) {
    if (member == own) continue;
    const auto [sent, expected] = theirs(member);
    auto found = between(member, own, sent, operation.received(member));
    if (!found) found = between(own, member, operation.part(member), expected);
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace lockstep::detail
