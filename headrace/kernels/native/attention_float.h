// Products of tiles in float32, from elements of any type: packing turns them into floats.
#pragma once

#include "attention_core.h"

namespace {

struct NoGuard {
    NoGuard() {}
    ~NoGuard() {}
};

template <class Type>
struct FloatProducts {
    using Element = Type;
    using Packed = float;
    using Guard = NoGuard;
    // Rows whose sums stay in registers, and how many vectors of each.
    static constexpr int kAtOnce = kLanes == 16 ? 6 : 3;
    static constexpr int kAcross = 4;
    static constexpr int kRows = 4 * kAtOnce;
    static constexpr int kWidth = kAcross * kLanes;  // columns that are multiplied at once lie together
    static constexpr auto& kPrecision = kFine;

    static int padded(int head_dim) {
        return (head_dim + kWidth - 1) / kWidth * kWidth;
    }

    static HEADRACE_INLINE Vector load_some(const Type* from, int at, int head_dim) {
        if (at + kLanes <= head_dim) return load(from + at);
        Type some[kLanes] = {};
        if (at < head_dim) std::memcpy(some, from + at, size_t(head_dim - at) * sizeof(Type));
        return load(some);
    }

    static void pack_query(float* to, const Type* from, int head_dim, int padded) {
        for (int at = 0; at < padded; at += kLanes) store(to + at, load_some(from, at, head_dim));
    }

    // [kTile / kWidth, padded, kWidth]
    static void pack_keys(float* to, const Type* const* rows, int head_dim, int padded, int tile_keys) {
        for (int key = 0; key < tile_keys; key += kLanes) {
            float* const panel = to + key / kWidth * kWidth * padded + key % kWidth;
            for (int at = 0; at < padded; at += kLanes) {
                Vector square[kLanes];
#pragma GCC unroll 16
                for (int row = 0; row < kLanes; ++row) square[row] = load_some(rows[key + row], at, head_dim);
                transpose(square);
#pragma GCC unroll 16
                for (int row = 0; row < kLanes; ++row) store(panel + (at + row) * kWidth, square[row]);
            }
        }
    }

    // [padded / kWidth, kTile, kWidth]
    static void pack_values(float* to, const Type* const* rows, int head_dim, int padded, int tile_keys) {
        for (int key = 0; key < tile_keys; ++key) {
            for (int at = 0; at < padded; at += kLanes) {
                float* const panel = to + at / kWidth * kWidth * kTile + at % kWidth;
                store(panel + key * kWidth, load_some(rows[key], at, head_dim));
            }
        }
    }

    // to[rows][kWidth] (+)= from[rows][depth] · by[depth][kWidth], summed in order.
    template <int kCount, bool kAdd>
    static HEADRACE_INLINE void multiply(float* to, int to_stride, const float* from, int from_stride, const float* by,
                                         int depth) {
        Vector sums[kCount][kAcross];
#pragma GCC unroll 6
        for (int row = 0; row < kCount; ++row) {
#pragma GCC unroll 4
            for (int at = 0; at < kAcross; ++at) {
                sums[row][at] = kAdd ? load(to + row * to_stride + at * kLanes) : Vector{};
            }
        }
        for (int step = 0; step < depth; ++step) {
            Vector factors[kAcross];
#pragma GCC unroll 4
            for (int at = 0; at < kAcross; ++at) factors[at] = load(by + step * kWidth + at * kLanes);
#pragma GCC unroll 6
            for (int row = 0; row < kCount; ++row) {
                const Vector factor = all(from[row * from_stride + step]);
#pragma GCC unroll 4
                for (int at = 0; at < kAcross; ++at) sums[row][at] = fused(factor, factors[at], sums[row][at]);
            }
        }
#pragma GCC unroll 6
        for (int row = 0; row < kCount; ++row) {
#pragma GCC unroll 4
            for (int at = 0; at < kAcross; ++at) store(to + row * to_stride + at * kLanes, sums[row][at]);
        }
    }

    template <bool kAdd>
    static void multiply_rows(float* to, int to_stride, const float* from, int from_stride, const float* by, int depth,
                              int rows) {
        int row = 0;
        for (; row + kAtOnce <= rows; row += kAtOnce) {
            multiply<kAtOnce, kAdd>(to + row * to_stride, to_stride, from + row * from_stride, from_stride, by, depth);
        }
        for (; row + 3 <= rows; row += 3) {
            multiply<3, kAdd>(to + row * to_stride, to_stride, from + row * from_stride, from_stride, by, depth);
        }
        for (; row < rows; ++row) {
            multiply<1, kAdd>(to + row * to_stride, to_stride, from + row * from_stride, from_stride, by, depth);
        }
    }

    static void scores(float* to, const float* query, const float* keys, int rows, int padded, int tile_keys) {
        for (int at = 0; at < tile_keys; at += kWidth) {
            multiply_rows<false>(to + at, kTile, query, padded, keys + at * padded, padded, rows);
        }
    }

    static HEADRACE_INLINE void put_weights(float* to, Vector first, Vector second) {
        store(to, first);
        store(to + kLanes, second);
    }

    static void add(float* sums, const float* weights, const float* values, int rows, int padded, int tile_keys) {
        for (int at = 0; at < padded; at += kWidth) {
            multiply_rows<true>(sums + at, padded, weights, kTile, values + at * kTile, tile_keys, rows);
        }
    }

    static void unpack(float*, int) {}
};

void attend(int type, const HeadraceAttention& call) {
    if (type == kBFloat16) {
        Attention<FloatProducts<BFloat16>>(call).run();
    } else {
        Attention<FloatProducts<float>>(call).run();
    }
}

}  // namespace
