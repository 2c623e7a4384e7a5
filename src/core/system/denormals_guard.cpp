#include "core/system/denormals_guard.h"

#include "lockstep/denormals.h"

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include <cstdint>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

#if defined(__x86_64__)
/// Bits of MXCSR: flush denormal results (FTZ) and operands (DAZ).
constexpr unsigned flush_bits = 1U << 15 | 1U << 6;
unsigned control_register() { return _mm_getcsr(); }
void set_control_register(unsigned value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
/// Bit of FPCR: flush denormal results and operands (FZ).
/// Source: Arm Architecture Reference Manual, "FPCR, Floating-point Control Register".
constexpr std::uint64_t flush_bits = 1U << 24;
std::uint64_t control_register() {
  std::uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void set_control_register(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
constexpr unsigned flush_bits = 0;
unsigned control_register() { return 0; }
void set_control_register(unsigned) {}
#endif

}  // namespace

bool flushes_denormals() {
  return detail::can_flush_denormals && (control_register() & flush_bits) == flush_bits;
}

void flush_denormals(bool flush) {
  if (flush && !detail::can_flush_denormals) {
    throw InvalidArgument(
        "denormals: got flush, expected keep on this processor; set LOCKSTEP_FLUSH_DENORMALS=0");
  }
  const auto others = control_register() & ~flush_bits;
  set_control_register(flush ? others | flush_bits : others);
}

std::string_view detail::denormals_text(bool flushed) { return flushed ? "flushed" : "kept"; }

void detail::expect_same_denormals(std::string_view where, std::size_t rank, bool flushed,
                                   bool flushed_on_rank_0) {
  if (flushed == flushed_on_rank_0) return;
  throw InvalidArgument(concat(
      where, ": denormals are ", denormals_text(flushed), " on rank ", rank, ", expected ",
      denormals_text(flushed_on_rank_0),
      " as on rank 0; set LOCKSTEP_FLUSH_DENORMALS, flush_denormals in the options of init(), or "
      "torch.set_flush_denormal() in Python to the same value on all ranks"));
}

}  // namespace lockstep
