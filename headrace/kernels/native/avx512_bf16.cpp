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
    // Four sums at once: halves of each lane beside each other, then lanes.
    static inline void totals(const Sum* s, float* to) {
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(s[0], s[1]), _mm512_unpackhi_ps(s[0], s[1]));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(s[2], s[3]), _mm512_unpackhi_ps(s[2], s[3]));
        const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
        _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    }
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
