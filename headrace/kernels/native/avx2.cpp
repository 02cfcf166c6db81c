// x86 with AVX2, FMA and F16C: 8 products at once, bfloat16 widened on the way.
#include "kernels.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace headrace {
namespace {

bool is_here() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

HEADRACE_TARGET("avx2,fma,f16c")

#include "numbers.inc"
#include "rows.inc"

inline __m256 load_wide(const float* from) { return _mm256_loadu_ps(from); }
inline __m256 load_wide(const bf16* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <class T>
struct Lanes {
    using Vector = __m256;
    using Sum = __m256;
    static constexpr int64_t kWidth = 8, kOuts = 4, kRows = 2;

    static inline Vector load(const T* from) { return load_wide(from); }
    static inline Sum zero() { return _mm256_setzero_ps(); }
    static inline Sum add_products(Sum sum, Vector a, Vector b) { return _mm256_fmadd_ps(a, b, sum); }
    // Four sums at once: halves of each lane beside each other, then lanes.
    static inline void totals(const Sum* s, float* to) {
        const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(s[0], s[1]), _mm256_unpackhi_ps(s[0], s[1]));
        const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(s[2], s[3]), _mm256_unpackhi_ps(s[2], s[3]));
        const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
        _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    }
};

#include "dots.inc"
#include "product.inc"

constexpr Kernels kFloat = table<float>(), kBf16 = table<bf16>();

HEADRACE_TARGET_END

}  // namespace

const InstructionSet kAvx2 = {"avx2", is_here, {&kFloat, &kBf16}};

}  // namespace headrace
#else
namespace headrace {
const InstructionSet kAvx2 = {"avx2", [] { return false; }, {nullptr, nullptr}};
}
#endif
