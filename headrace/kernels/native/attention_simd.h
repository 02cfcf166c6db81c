// Vectors of HEADRACE_LANES floats in the instruction set of the file that includes this. Everything here is local to
// that file: a function shared between files would be linked once, in whichever set came first.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC's own headers, which mean it
#endif

#define HEADRACE_INLINE __attribute__((always_inline)) inline

namespace {

constexpr int kLanes = HEADRACE_LANES;
typedef float Vector __attribute__((vector_size(4 * HEADRACE_LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * HEADRACE_LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * HEADRACE_LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * HEADRACE_LANES)));

struct BFloat16 {
    uint16_t bits;
};

// (Adding to 0 instead would be computed: it is not the same for -0.)
HEADRACE_INLINE Vector all(float value) { return value - Vector{}; }

HEADRACE_INLINE Vector load(const float* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

HEADRACE_INLINE void store(float* to, Vector vector) { std::memcpy(to, &vector, sizeof vector); }

HEADRACE_INLINE Vector load(const BFloat16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    return reinterpret_cast<Vector>(words);
}

// The nearest bfloat16, the even one of two; NaN stays NaN.
HEADRACE_INLINE BFloat16 nearest(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return {uint16_t(bits >> 16 | 0x40)};
    return {uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

HEADRACE_INLINE void put(float* to, float value) { *to = value; }
HEADRACE_INLINE void put(BFloat16* to, float value) { *to = nearest(value); }

// a · b + c
HEADRACE_INLINE Vector fused(Vector a, Vector b, Vector c) {
#if HEADRACE_LANES == 16
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif HEADRACE_LANES == 8
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// The second where one of them is NaN.
HEADRACE_INLINE Vector greater(Vector a, Vector b) {
#if HEADRACE_LANES == 16
    return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif HEADRACE_LANES == 8
    return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

HEADRACE_INLINE float greatest(Vector vector) {
#if HEADRACE_LANES == 16
    return _mm512_reduce_max_ps((__m512)vector);
#else
    float result = vector[0];
    for (int lane = 1; lane < kLanes; ++lane) result = vector[lane] > result ? vector[lane] : result;
    return result;
#endif
}

HEADRACE_INLINE float sum(Vector vector) {
    float lanes[kLanes];
    store(lanes, vector);
    for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

// 0, 1, 2 ...
HEADRACE_INLINE Integers lane_numbers() {
    Integers numbers;
    for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = lane;
    return numbers;
}

// exp2's coefficients on [-1/2, 1/2]: minimax, from Cephes' exp2f, within 1e-7 of it.
constexpr float kFine[] = {1.535336188319500e-4f, 1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f,
                           2.402264791363012e-1f, 6.931472028550421e-1f, 1.0f};
// Within 7.5e-5: a twentieth of what a rounding to bfloat16 changes.
constexpr float kCoarse[] = {5.517167e-2f, 2.426111e-1f, 6.932610e-1f, 9.999281e-1f};

// exp2(x · scale) for x · scale <= 0; `least` is -100 / scale. What is below that counts as that: nothing becomes a
// denormal number, which would take a hundred times as long. NaN stays NaN.
template <int kCount>
HEADRACE_INLINE Vector power_of_two(Vector x, Vector scale, Vector least, const float (&coefficients)[kCount]) {
    x = greater(least, x);
    // Adding 1.5 · 2^23 + 127 rounds to an integer and leaves an exponent's bits in the lowest place.
    const Vector shift = all(12583039.0f);
    const Vector shifted = fused(x, scale, shift);
    const Vector rest = fused(x, scale, shift - shifted);
    Vector power = all(coefficients[0]);
#pragma GCC unroll 8
    for (int at = 1; at < kCount; ++at) power = fused(power, rest, all(coefficients[at]));
    return power * reinterpret_cast<Vector>(reinterpret_cast<Words>(shifted) << 23);
}

template <int kFirst, int... kLane>
HEADRACE_INLINE Vector interleaved(Vector a, Vector b, std::integer_sequence<int, kLane...>) {
    return __builtin_shufflevector(a, b, (kFirst + kLane / 2 + kLane % 2 * kLanes)...);
}

// Turns a square of kLanes vectors over its diagonal; the bits are only moved. Interleaving the first half with the
// second is one round of a perfect shuffle: after log2(kLanes) rounds rows are columns.
HEADRACE_INLINE void transpose(Vector (&square)[kLanes]) {
    using Sequence = std::make_integer_sequence<int, kLanes>;
#pragma GCC unroll 4
    for (int round = kLanes; round > 1; round /= 2) {
        Vector mixed[kLanes];
#pragma GCC unroll 8
        for (int row = 0; row < kLanes / 2; ++row) {
            mixed[2 * row] = interleaved<0>(square[row], square[row + kLanes / 2], Sequence{});
            mixed[2 * row + 1] = interleaved<kLanes / 2>(square[row], square[row + kLanes / 2], Sequence{});
        }
#pragma GCC unroll 16
        for (int row = 0; row < kLanes; ++row) square[row] = mixed[row];
    }
}

}  // namespace
