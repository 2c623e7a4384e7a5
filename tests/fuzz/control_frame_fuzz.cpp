#include <algorithm>
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
Parsed parse(std::string_view stream, std::size_t piece) {
  Parsed parsed;
  FrameReader reader;
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

  std::string encoded;
  for (const Frame& frame : whole.frames) {
    require(frame.kind <= last_kind, "a frame has a known kind");
    const auto longest = frame.kind == Kind::answer ? longest_status_payload : longest_payload;
    require(frame.payload.size() <= longest, "a payload has at most the longest size");
    encoded += encode(frame);
  }
  require(stream.starts_with(encoded), "encoding the frames gives the bytes they were read from");
  return 0;
}
