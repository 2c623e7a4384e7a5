#include <hwy/targets.h>

// The two functions of libhwy that kernels call, so that the module does not need the library.

namespace hwy {

int64_t SupportedTargets() {
  int64_t targets = HWY_STATIC_TARGET;
  const bool sse4 = __builtin_cpu_supports("x86-64-v2") && __builtin_cpu_supports("aes") &&
                    __builtin_cpu_supports("pclmul");
  if (!sse4) return targets;
  targets |= HWY_SSSE3 | HWY_SSE4;
  if (__builtin_cpu_supports("x86-64-v3")) targets |= HWY_AVX2;
  if (!__builtin_cpu_supports("x86-64-v4")) return targets;
  targets |= HWY_AVX3;
  const bool deep_learning =
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vpopcntdq") &&
      __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("vpclmulqdq") &&
      __builtin_cpu_supports("vaes") && __builtin_cpu_supports("gfni");
  return deep_learning ? targets | HWY_AVX3_DL : targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
