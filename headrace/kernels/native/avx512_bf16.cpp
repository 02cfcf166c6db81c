// x86 with AVX-512 and its bfloat16 dot products: 32 products of bfloat16, or 16 of float32, at once.
#include "kernels.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace headrace {
namespace {

bool is_here() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16");
}

HEADRACE_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")

#include "numbers.inc"
#include "rows_avx512.inc"

struct FloatSums {
    using Sum = __m512;
    static inline Sum zero() { return _mm512_setzero_ps(); }
    static inline float total(Sum sum) { return _mm512_reduce_add_ps(sum); }
};

template <class T>
struct Lanes;

template <>
struct Lanes<float> : FloatSums {
    using Vector = __m512;
    static constexpr int64_t kWidth = 16, kOuts = 4, kRows = 5;
    static inline Vector load(const float* from) { return _mm512_loadu_ps(from); }
    static inline Sum add_products(Sum sum, Vector a, Vector b) { return _mm512_fmadd_ps(a, b, sum); }
};

template <>
struct Lanes<bf16> : FloatSums {
    using Vector = __m512bh;
    static constexpr int64_t kWidth = 32, kOuts = 4, kRows = 5;
    static inline Vector load(const bf16* from) { return (__m512bh)_mm512_loadu_si512(from); }
    static inline Sum add_products(Sum sum, Vector a, Vector b) { return _mm512_dpbf16_ps(sum, a, b); }
};

#include "dots.inc"
#include "product.inc"

constexpr Kernels kFloat = table<float>(), kBf16 = table<bf16>();

HEADRACE_TARGET_END

}  // namespace

const InstructionSet kAvx512Bf16 = {"avx512_bf16", is_here, {&kFloat, &kBf16}};

}  // namespace headrace
#else
namespace headrace {
const InstructionSet kAvx512Bf16 = {"avx512_bf16", [] { return false; }, {nullptr, nullptr}};
}
#endif
