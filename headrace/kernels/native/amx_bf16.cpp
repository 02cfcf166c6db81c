// x86 with AMX tiles of bfloat16: 16 × 16 outputs over 32 elements in one instruction.
//
// The weights are the left factor, so that their rows are read as they lie in the checkpoint; what is rearranged is x,
// which is small: prepared, 16 rows lie beside each other in pairs of elements, [in / 32][16 pairs][16 rows][2]. A tile
// of sums is [16 outputs][16 rows], and two neighbouring outputs of it are a row of pairs for the next product.
#include "kernels.h"
#include "target.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace headrace {
namespace {

// The processor has it, the kernel saves its registers, and this process may use them (Linux asks to be asked).
bool is_here() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const bool has_tiles = (d >> 24 & 1) && (d >> 22 & 1);
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return has_tiles && kAvx512Bf16.is_here() && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

HEADRACE_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c,amx-tile,amx-bf16")

#include "numbers.inc"
#include "rows_avx512.inc"

constexpr int64_t kSide = 16;                // rows and outputs of a tile
constexpr int64_t kDepth = 32;               // elements of a tile's row
constexpr int64_t kElements = kSide * kDepth;

// GCC does not know that tile instructions read memory: what they read must be there before.
inline void written() { asm volatile("" ::: "memory"); }

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tiles 0-3 sums, 4-5 weights, 6-7 rows: each 16 rows of 64 bytes. Others that use tiles on this thread leave their
// own configuration, or none, behind: so each piece of a product makes its own.
struct Session {
    Session() {
        TileConfig config;
        for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = 64, config.rows[tile] = 16;
        written();
        _tile_loadconfig(&config);
    }
    ~Session() { _tile_release(); }
};

// 16 × 16 elements of 32 bits, rows and columns exchanged.
inline void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c);
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xDD);
        const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xDD);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(a, c, 0xDD);
        r[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
}

// Elements of two outputs, side by side.
inline __m512i pairs(__m512 low, __m512 high) {
    const __m512i lows = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(low));
    const __m512i highs = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(high));
    return _mm512_or_si512(lows, _mm512_slli_epi32(highs, 16));
}

template <class T>
struct Micro;

template <>
struct Micro<bf16> {
    using Piece = Session;

    static int64_t prepared_size(int64_t rows, int64_t in) {
        return rounded_up(rows, kSide) * rounded_up(in, kDepth);
    }

    static void prepare(const bf16* x, int64_t stride, int64_t first, int64_t rows, int64_t in, bf16* prepared) {
        const int64_t filled = rounded_up(in, kDepth);
        for (int64_t row = 0; row < rows; row += kSide) {
            bf16* to = prepared + (first + row) * filled;
            const int64_t some = smaller(kSide, rows - row);
            for (int64_t i = 0; i < in; i += kDepth, to += kElements) {
                const int64_t left = in - i;
                const __mmask32 mask = left >= kDepth ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
                __m512i loaded[kSide];
                for (int64_t r = 0; r < kSide; ++r) {
                    loaded[r] = r < some ? _mm512_maskz_loadu_epi16(mask, x + (row + r) * stride + i)
                                        : _mm512_setzero_si512();
                }
                transpose(loaded);
                for (int64_t r = 0; r < kSide; ++r) _mm512_store_si512(to + r * kDepth, loaded[r]);
            }
        }
    }

    // Gives [kBlock outputs][kBlock rows].
    static void multiply(const bf16* prepared, int64_t in, int64_t first_row, int64_t rows, const bf16* weight,
                         int64_t outs, float* tile) {
        const int64_t filled = rounded_up(in, kDepth);
        const bf16* x = prepared + first_row * filled;
        const int64_t whole = outs == kBlock ? in / kDepth * kDepth : 0;
        const bool is_wide = rows > kSide;
        _tile_zero(0);
        _tile_zero(1);
        if (is_wide) {
            _tile_zero(2);
            _tile_zero(3);
        }
        const bf16* lower = weight + kSide * in;
        if (is_wide) {
            const bf16* y = x + kSide * filled;
            for (int64_t i = 0; i < whole; i += kDepth) {
                _tile_loadd(4, weight + i, in * 2);
                _tile_loadd(6, x + i * kSide, 64);
                _tile_loadd(5, lower + i, in * 2);
                _tile_loadd(7, y + i * kSide, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 5, 6);
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        } else {
            for (int64_t i = 0; i < whole; i += kDepth) {
                _tile_loadd(4, weight + i, in * 2);
                _tile_loadd(6, x + i * kSide, 64);
                _tile_loadd(5, lower + i, in * 2);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 5, 6);
            }
        }
        // At the edges, what lies beyond the weights is zeros, not a neighbour's row that might hold a NaN.
        for (int64_t i = whole; i < in; i += kDepth) {
            alignas(64) bf16 edge[kBlock * kDepth] = {};
            for (int64_t out = 0; out < outs; ++out) {
                __builtin_memcpy(edge + out * kDepth, weight + out * in + i, smaller(kDepth, in - i) * sizeof(bf16));
            }
            written();
            _tile_loadd(4, edge, 64);
            _tile_loadd(5, edge + kElements, 64);
            _tile_loadd(6, x + i * kSide, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            if (is_wide) {
                _tile_loadd(7, x + (kSide * filled + i * kSide), 64);
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, tile, kBlock * 4);
        _tile_stored(1, tile + kSide * kBlock, kBlock * 4);
        if (is_wide) {
            _tile_stored(2, tile + kSide, kBlock * 4);
            _tile_stored(3, tile + kSide * kBlock + kSide, kBlock * 4);
        }
    }

    static void by_row(float* tile, int64_t rows) {
        __m512i corner[4][kSide];
        const int count = rows > kSide ? 4 : 2;  // [row half][output half]
        for (int i = 0; i < count; ++i) {
            const float* from = tile + (i % 2) * kSide * kBlock + (i / 2) * kSide;
            for (int64_t r = 0; r < kSide; ++r) corner[i][r] = _mm512_load_si512(from + r * kBlock);
            transpose(corner[i]);
        }
        for (int i = 0; i < count; ++i) {
            float* to = tile + (i / 2) * kSide * kBlock + (i % 2) * kSide;
            for (int64_t r = 0; r < kSide; ++r) _mm512_store_si512(to + r * kBlock, corner[i][r]);
        }
    }

    static void add_bias(float* tile, const float* bias, int64_t) {
        for (int64_t out = 0; out < kBlock; ++out) {
            for (int64_t row = 0; row < kBlock; ++row) tile[out * kBlock + row] += bias[out];
        }
    }

    static void store_gated(const float* gate, const float* up, int64_t in, int64_t first_row, int64_t rows,
                            int64_t first_out, bf16* prepared) {
        const int64_t filled = rounded_up(in, kDepth);
        for (int64_t row = 0; row < rows; row += kSide) {
            bf16* to = prepared + (first_row + row) * filled + first_out * kSide;
            for (int64_t pair = 0; pair < kBlock / 2; ++pair) {
                const float* g = gate + 2 * pair * kBlock + row;
                const float* u = up + 2 * pair * kBlock + row;
                const __m512 low = gated<bf16>(_mm512_load_ps(g), _mm512_load_ps(u));
                const __m512 high = gated<bf16>(_mm512_load_ps(g + kBlock), _mm512_load_ps(u + kBlock));
                _mm512_store_si512(to + pair * kDepth, pairs(low, high));
            }
        }
    }
};

#include "product.inc"

constexpr Kernels kBf16 = table<bf16>();

HEADRACE_TARGET_END

}  // namespace

const InstructionSet kAmxBf16 = {"amx_bf16", is_here, {nullptr, &kBf16}};

}  // namespace headrace
#else
namespace headrace {
const InstructionSet kAmxBf16 = {"amx_bf16", [] { return false; }, {nullptr, nullptr}};
}
#endif
