#include "core/system/denormals_guard.h"

#include "lockstep/denormals.h"

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

#ifdef __x86_64__

namespace {

/// Bits of MXCSR: flush denormal results (FTZ) and operands (DAZ).
constexpr unsigned flush_bits = 1U << 15 | 1U << 6;

}  // namespace

bool flushes_denormals() { return (_mm_getcsr() & flush_bits) == flush_bits; }

void flush_denormals(bool flush) {
  const unsigned others = _mm_getcsr() & ~flush_bits;
  _mm_setcsr(flush ? others | flush_bits : others);
}

#else

bool flushes_denormals() { return false; }

void flush_denormals(bool flush) {
  if (flush) {
    throw InvalidArgument(
        "denormals: got flush, expected keep on this processor; set LOCKSTEP_FLUSH_DENORMALS=0");
  }
}

#endif

std::string_view detail::denormals_text(bool flushed) { return flushed ? "flushed" : "kept"; }

void detail::expect_same_denormals(std::string_view where, std::size_t rank, bool flushed,
                                   bool flushed_on_rank_0) {
  if (flushed == flushed_on_rank_0) return;
  throw InvalidArgument(concat(
      where, ": denormals are ", denormals_text(flushed), " on rank ", rank, ", expected ",
      denormals_text(flushed_on_rank_0),
      " as on rank 0; set LOCKSTEP_FLUSH_DENORMALS, or flush_denormals in the options of init(), "
      "to the same value on all ranks"));
}

}  // namespace lockstep
