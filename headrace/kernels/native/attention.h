// Attention of a step's rows over one layer's slot-indexed KV cache, read in place: nothing of it is copied.
//
// Softmax(query · keys) · values with a running maximum (Dao et al., FlashAttention-2, arXiv:2307.08691), tile of keys
// after tile. Tiles and parts are counted from a request's first token, and a row's numbers meet no other row's: its
// result has the same bits in whatever chunk, company or number of threads it is computed.
#pragma once

#include <cstdint>

#include "pool.h"

// Some last tokens of one request: a prompt's chunk, or one token of a decoding request.
struct HeadraceAttentionSpan {
    int64_t row;           // of its first token in query and out
    int64_t length;        // tokens
    int64_t context;       // tokens of the request so far, these included
    const int64_t* slots;  // [context]: where their keys and values lie, in order
};

struct HeadraceAttention {
    const void* query;     // [rows, heads, head_dim], a row `query_stride` elements after the one before
    int64_t query_stride;
    const void* keys;      // [slots, kv_heads, head_dim]
    const void* values;    // the same
    void* out;             // [rows, heads, head_dim]
    const HeadraceAttentionSpan* spans;
    int64_t span_count;
    int64_t heads, kv_heads, head_dim;
    int64_t window;        // keys that a token sees at most, its own included; 0: all
    float scale;           // of the scores
};

enum HeadraceType { kFloat32 = 0, kBFloat16 = 1 };

// Ways to compute it, the fastest last. All but kAmx compute in float32; kAmx multiplies bfloat16 (kBFloat16 only).
enum HeadraceAttentionWay { kGeneric = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };

// The fastest way for a type on this machine.
HEADRACE_API int headrace_attention_fastest(int type);

// Computes attention in a way, or in the fastest where that is slower.
HEADRACE_API void headrace_attention(int way, int type, const HeadraceAttention* call);

namespace headrace {
void attention_generic(int type, const HeadraceAttention& call);
#if defined(__x86_64__)
void attention_avx2(int type, const HeadraceAttention& call);
void attention_avx512(int type, const HeadraceAttention& call);
void attention_amx(const HeadraceAttention& call);
#endif
}  // namespace headrace
