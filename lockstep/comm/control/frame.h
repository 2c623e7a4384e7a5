#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/control/failure.h"

namespace lockstep::control {

/// What one end of a control connection says to the other.
enum class Kind : std::uint16_t {
  hello,      ///< who comes: Hello
  accepted,   ///< who was come to, and that all is well so far: Greeting
  refused,    ///< why not; the connection ends
  all_here,   ///< heartbeats begin
  heartbeat,  ///< nothing else
  failed,     ///< the first cause; the world has ended
  timed_out,  ///< the same, because somebody was waited for too long
  left        ///< this end takes part in nothing more, and all is well
};

struct Frame {
  Kind kind;
  std::string payload = {};
};

/// How the first cause is told.
Frame told(const Failure& failure);

/// The longest payload that is sent or taken.
inline constexpr std::size_t longest_payload = 4096;

/// The bytes of a frame; of a longer payload as much as is taken.
std::string encode(const Frame& frame);

/// Cuts a stream of bytes, in whatever pieces they come, into frames.
class FrameReader {
 public:
  void add(std::string_view bytes) { bytes_ += bytes; }
  /// The next whole frame, if it is here. Throws: CommError once bytes are no frame's.
  std::optional<Frame> next();

 private:
  std::string bytes_;
};

}  // namespace lockstep::control
