// Attention whose products are made by AMX's tiles of bfloat16, with float32 sums; the rest is AVX-512.
#include "attention.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")
#define HEADRACE_LANES 16
#include "attention_core.h"

namespace {

// All eight tiles are 16 rows of 64 bytes while this lives.
class TilesInUse {
  public:
    TilesInUse() {
        _tile_loadconfig(&kShape);
    }
    ~TilesInUse() { _tile_release(); }

  private:
    struct alignas(64) Shape {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
    static constexpr Shape kShape = {
        1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
};

// GCC knows neither what tile instructions read nor what they write: all of it must be in memory around them.
HEADRACE_INLINE void settle_memory() { __asm__ volatile("" ::: "memory"); }

struct AmxProducts {
    using Element = BFloat16;
    using Packed = BFloat16;
    using Guard = TilesInUse;
    static constexpr int kRows = 32;
    static constexpr auto& kPrecision = kCoarse;

    static int padded(int head_dim) { return (head_dim + 31) / 32 * 32; }

    static HEADRACE_INLINE __m512i load_some(const BFloat16* from, int at, int head_dim) {
        const int left = head_dim - at;
        if (left >= 32) return _mm512_loadu_si512(from + at);
        return _mm512_maskz_loadu_epi16(left > 0 ? (1u << left) - 1 : 0, from + at);
    }

    static void pack_query(BFloat16* to, const BFloat16* from, int head_dim, int padded) {
        for (int at = 0; at < padded; at += 32) _mm512_storeu_si512(to + at, load_some(from, at, head_dim));
    }

    // [kTile / 16, padded / 32, 16 pairs of dimensions, 16 keys, 2]
    static void pack_keys(BFloat16* to, const BFloat16* const* rows, int head_dim, int padded,
                          int tile_keys) {
        // Products read 32 keys at a time.
        for (int key = 0; key < (tile_keys + 31) / 32 * 32; key += 16) {
            for (int at = 0; at < padded; at += 32) {
                Vector square[16];
#pragma GCC unroll 16
                for (int row = 0; row < 16; ++row) square[row] = (Vector)load_some(rows[key + row], at, head_dim);
                transpose(square);
                float* const tile = reinterpret_cast<float*>(to + key * padded + at * 16);
#pragma GCC unroll 16
                for (int row = 0; row < 16; ++row) store(tile + row * 16, square[row]);
            }
        }
    }

    // [kTile / 32, padded / 16, 16 pairs of keys, 16 dimensions, 2]. Of 32 dimensions the first tile has those that
    // _mm512_unpacklo_epi16 takes, the second the others: `unpack` puts the sums in order.
    static void pack_values(BFloat16* to, const BFloat16* const* rows, int head_dim, int padded,
                            int tile_keys) {
        for (int key = 0; key < (tile_keys + 31) / 32 * 32; key += 2) {
            BFloat16* const tiles = to + key / 32 * 32 * padded + key % 32 / 2 * 32;
            for (int at = 0; at < padded; at += 32) {
                const __m512i even = load_some(rows[key], at, head_dim), odd = load_some(rows[key + 1], at, head_dim);
                _mm512_storeu_si512(tiles + at * 32, _mm512_unpacklo_epi16(even, odd));
                _mm512_storeu_si512(tiles + at * 32 + 512, _mm512_unpackhi_epi16(even, odd));
            }
        }
    }

    static void scores(float* to, const BFloat16* query, const BFloat16* keys, int rows, int padded, int tile_keys) {
        settle_memory();
        const bool two = rows > 16;
        for (int key = 0; key < tile_keys; key += 32) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int at = 0; at < padded; at += 32) {
                _tile_loadd(4, query + at, padded * 2);
                _tile_loadd(6, keys + key * padded + at * 16, 64);
                _tile_loadd(7, keys + (key + 16) * padded + at * 16, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                if (!two) continue;
                _tile_loadd(5, query + 16 * padded + at, padded * 2);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, to + key, kTile * 4);
            _tile_stored(1, to + key + 16, kTile * 4);
            if (!two) continue;
            _tile_stored(2, to + 16 * kTile + key, kTile * 4);
            _tile_stored(3, to + 16 * kTile + key + 16, kTile * 4);
        }
        settle_memory();
    }

    static HEADRACE_INLINE void put_weights(BFloat16* to, Vector first, Vector second) {
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
    }

    static void add(float* sums, const BFloat16* weights, const BFloat16* values, int rows, int padded, int tile_keys) {
        settle_memory();
        const bool two = rows > 16;
        for (int at = 0; at < padded; at += 32) {
            _tile_loadd(0, sums + at, padded * 4);
            _tile_loadd(1, sums + at + 16, padded * 4);
            if (two) {
                _tile_loadd(2, sums + 16 * padded + at, padded * 4);
                _tile_loadd(3, sums + 16 * padded + at + 16, padded * 4);
            }
            for (int key = 0; key < tile_keys; key += 32) {
                _tile_loadd(4, weights + key, kTile * 2);
                _tile_loadd(6, values + key * padded + at * 32, 64);
                _tile_loadd(7, values + key * padded + at * 32 + 512, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                if (!two) continue;
                _tile_loadd(5, weights + 16 * kTile + key, kTile * 2);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, sums + at, padded * 4);
            _tile_stored(1, sums + at + 16, padded * 4);
            if (!two) continue;
            _tile_stored(2, sums + 16 * padded + at, padded * 4);
            _tile_stored(3, sums + 16 * padded + at + 16, padded * 4);
        }
        settle_memory();
    }

    static void unpack(float* sums, int padded) {
        const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        for (int at = 0; at < padded; at += 32) {
            const __m512 first = _mm512_loadu_ps(sums + at), second = _mm512_loadu_ps(sums + at + 16);
            _mm512_storeu_ps(sums + at, _mm512_permutex2var_ps(first, low, second));
            _mm512_storeu_ps(sums + at + 16, _mm512_permutex2var_ps(first, high, second));
        }
    }
};

}  // namespace

void headrace::attention_amx(const HeadraceAttention& call) { Attention<AmxProducts>(call).run(); }
#endif
