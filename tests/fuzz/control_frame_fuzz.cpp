#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "comm/control/connection.h"
#include "lockstep/error.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::inline v0_2::control {
namespace {

using fuzzing::require;

struct Parsed {
  std::vector<Frame> frames = {};
  std::string refusal = {};
};

/// The stream cut into pieces of the given size.
Parsed parse(std::string_view stream, std::size_t piece, const FrameMac* mac = nullptr) {
  Parsed parsed;
  FrameReader reader;
  if (mac != nullptr) reader.check(*mac);
  try {
    while (!stream.empty()) {
      reader.add(stream.substr(0, piece));
      stream.remove_prefix(std::min(piece, stream.size()));
      while (auto frame = reader.next()) parsed.frames.push_back(std::move(*frame));
    }
  } catch (const CommError& error) {
    parsed.refusal = error.what();
  }
  return parsed;
}

bool same(const Frame& a, const Frame& b) { return a.kind == b.kind && a.payload == b.payload; }

/// The frames, sent with MACs after a heartbeat. position: of a byte that is changed on the way.
void check_with_macs(std::vector<Frame> frames, std::size_t position) {
  const FrameMac mac = macs_of({}, {.purpose = "fuzz"}).to_joiner;
  FrameMac sending = mac;
  frames.insert(frames.begin(), {.kind = Kind::heartbeat});
  std::string stream;
  std::size_t of_first = 0;
  for (const Frame& frame : frames) {
    stream += encode(frame, &sending);
    if (of_first == 0) of_first = stream.size();
  }
  const Parsed parsed = parse(stream, stream.size(), &mac);
  require(std::ranges::equal(frames, parsed.frames, same), "frames with MACs arrive");
  if (stream.size() == of_first) return;
  stream[of_first + position % (stream.size() - of_first)] ^= 1;
  const Parsed changed = parse(stream, stream.size(), &mac);
  require(changed.frames.size() < frames.size(), "a changed frame does not arrive");
  require(std::ranges::equal(changed.frames, std::span(frames).first(changed.frames.size()), same),
          "those before it do");
}

}  // namespace
}  // namespace lockstep::control

/// The first byte is the size of the pieces in which the stream arrives.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::control;
  if (size == 0) return 0;
  const std::string_view stream = lockstep::fuzzing::text_of({data + 1, size - 1});
  const lockstep::fuzzing::MemoryLimit memory(64 * size + 65536);
  const Parsed whole = parse(stream, stream.size());
  const Parsed pieces = parse(stream, std::size_t{1} + data[0]);
  require(std::ranges::equal(whole.frames, pieces.frames, same),
          "the frames do not depend on the pieces in which they arrive");
  require(whole.refusal == pieces.refusal, "nor does the refusal");

  const FrameMac mac = macs_of({}, {.purpose = "fuzz"}).to_joiner;
  for (const Frame& frame : parse(stream, stream.size(), &mac).frames)
    require(frame.kind == Kind::refused, "without a MAC, only a refusal arrives");
  check_with_macs(whole.frames, data[0] * size);

  std::string encoded;
  for (const Frame& frame : whole.frames) {
    require(frame.kind <= last_kind, "a frame has a known kind");
    const auto longest = frame.kind == Kind::answer ? longest_status_payload : longest_payload;
    require(frame.payload.size() <= longest, "a payload has at most the longest size");
    failure_in(frame);
    encoded += encode(frame);
  }
  require(stream.starts_with(encoded), "encoding the frames gives the bytes they were read from");
  return 0;
}
