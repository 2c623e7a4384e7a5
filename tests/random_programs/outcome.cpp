#include "tests/random_programs/outcome.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "core/text.h"

namespace lockstep::random_programs {
namespace {

using lockstep::detail::concat;
using lockstep::detail::joined;
using nlohmann::json;

/// The values from first on, of which a few say enough.
std::string text_of(const Values& values, std::size_t first) {
  if (!values) return "undefined";
  const auto rest = std::span(*values).subspan(first);
  const auto shown = rest.first(std::min<std::size_t>(rest.size(), 4));
  return concat(first > 0 ? "[… " : "[", joined(shown, " ", lockstep::detail::shortest),
                shown.size() < rest.size() ? " …]" : "]");
}

/// The first element that differs most; 0 where there is none.
std::size_t largest_difference(const Values& got, const Values& expected) {
  std::size_t found = 0;
  if (!got || !expected || got->size() != expected->size()) return found;
  const auto at = [&](std::size_t i) { return std::abs((*got)[i] - (*expected)[i]); };
  for (std::size_t i = 1; i < got->size(); ++i) {
    if (at(i) > at(found)) found = i;
  }
  return found;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

bool is_near(const Values& got, const Values& expected) {
  if (!got || !expected) return !got && !expected;
  if (got->size() != expected->size()) return false;
  std::vector<double> difference;
  for (std::size_t i = 0; i < got->size(); ++i) difference.push_back((*got)[i] - (*expected)[i]);
  // A sum that cancels has no relative precision of its own: values are about 1.
  return norm(difference) <= 1e-12 * (norm(*expected) + 1e-2);
}

/// The message without numbers, in which ranks may name themselves, and without the operation in
/// which the rank noticed a failure of the world, such as "all_reduce #7 (host) ".
std::string alike_on_ranks(std::string message) {
  for (const std::string_view backend : {"(host) ", "(nccl) ", "(staged) "}) {
    if (const auto at = message.find(backend); at != std::string::npos)
      message.erase(0, at + backend.size());
  }
  std::erase_if(message, [](unsigned char character) { return std::isdigit(character) != 0; });
  return message;
}

std::string error_of(const Outcome& outcome) {
  return outcome.error.empty() ? "no error" : outcome.error + ": " + outcome.text;
}

std::optional<std::string> difference_in_errors(const Expected& expected,
                                                const std::vector<const Outcome*>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& got = *ranks[rank];
    const bool right = got.error.empty() ? expected.error.empty() || expected.may_fail
                                         : expected.error == "any" || got.error == expected.error;
    if (!right) {
      return concat("rank ", rank, ": got ", error_of(got), ", expected ",
                    expected.error.empty() ? "no error" : expected.error);
    }
    if (!got.error.empty() && got.text.find(expected.mentions) == std::string::npos) {
      return concat("rank ", rank, ": got ", error_of(got), ", expected it to mention '",
                    expected.mentions, "'");
    }
    if (got.error != ranks[0]->error ||
        alike_on_ranks(got.text) != alike_on_ranks(ranks[0]->text)) {
      return concat("ranks raise different errors: rank 0 ", error_of(*ranks[0]), "; rank ", rank,
                    ' ', error_of(got));
    }
  }
  return std::nullopt;
}

std::optional<std::string> difference_in_values(const Expected& expected,
                                                const std::vector<const Outcome*>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& got = ranks[rank]->values;
    if (got.size() != expected.names.size()) {
      return concat("rank ", rank, ": got ", got.size(), " values, expected ",
                    expected.names.size());
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto& right =
          expected.checks[i] == Check::same ? ranks[0]->values[i] : expected.values[rank][i];
      const bool equal =
          expected.checks[i] == Check::none ||
          (expected.checks[i] == Check::same ? got[i] == right : is_near(got[i], right));
      if (equal) continue;
      const auto first = largest_difference(got[i], right);
      return concat("rank ", rank, ": ", expected.names[i], ": got ", text_of(got[i], first),
                    ", expected ", text_of(right, first),
                    expected.checks[i] == Check::same ? " as on rank 0" : "");
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> difference(const std::vector<Expected>& expected,
                                      const std::vector<Log>& logs) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::vector<const Outcome*> ranks;
    bool failed = false;
    for (std::size_t rank = 0; rank < logs.size(); ++rank) {
      if (logs[rank].size() <= i)
        return concat("operation ", i, ": rank ", rank, " did not come to it");
      ranks.push_back(&logs[rank][i]);
      failed = failed || !ranks.back()->error.empty();
    }
    for (std::size_t rank = 0; rank < logs.size(); ++rank) {
      if (failed && has(expected[i].later, static_cast<int>(rank)))
        ranks[rank] = &logs[rank].back();
    }
    if (auto found = difference_in_errors(expected[i], ranks)) {
      return concat("operation ", i, ": ", *found);
    }
    if (!ranks[0]->error.empty() && expected[i].ends) return std::nullopt;
    if (auto found = difference_in_values(expected[i], ranks)) {
      return concat("operation ", i, ": ", *found);
    }
  }
  return std::nullopt;
}

void write(std::ostream& out, const Log& log) {
  auto outcomes = json::array();
  for (const auto& outcome : log) {
    auto all = json::array();
    for (const auto& values : outcome.values) all.push_back(values ? json(*values) : json());
    outcomes.push_back({outcome.error, outcome.text, std::move(all)});
  }
  json::to_cbor(outcomes, out);
}

std::optional<Log> read_log(std::istream& in) {
  const auto outcomes = json::from_cbor(in, /*strict=*/false, /*allow_exceptions=*/false);
  if (outcomes.is_discarded()) return std::nullopt;
  Log log;
  for (const auto& outcome : outcomes) {
    log.push_back({.error = outcome[0].get<std::string>(), .text = outcome[1].get<std::string>()});
    for (const auto& values : outcome[2]) {
      log.back().values.push_back(values.is_null() ? Values() : values.get<std::vector<double>>());
    }
  }
  return log;
}

}  // namespace lockstep::random_programs
