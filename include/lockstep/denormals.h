#pragma once

namespace lockstep::inline v0_2 {

/// Whether the calling thread flushes denormals: numbers nearer to zero than the least normal one
/// (1.18e-38 in float32, 2.23e-308 in float64). Its arithmetic then treats denormal operands as
/// zero and returns zero instead of denormal results.
bool flushes_denormals();

/// Flushes denormals in the calling thread, or keeps them as in IEEE 754. A new thread inherits the
/// setting of the thread that creates it.
/// Throws: InvalidArgument for flush = true on a processor other than x86-64 and AArch64.
void flush_denormals(bool flush);

}  // namespace lockstep
