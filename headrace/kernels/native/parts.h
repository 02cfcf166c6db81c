// The parts of a decoder layer, each one call: what comes before its attention, what comes after it, and products.
//
// dtype: 0 float32, 1 bfloat16. All tensors of a call are of it unless another type is said, and dense (the last
// dimension, or both) unless a stride in elements is given. weight [out, in] lies as in the checkpoint; a bias or a
// norm that is null is left out. Nothing is allocated but a buffer that each calling thread keeps, up to some MB.
#pragma once

#include "pool.h"

// y [rows, out] = x [rows, in] times weight transposed + bias; y is float32 where `wide` is not 0.
HEADRACE_API void headrace_linear(
    int dtype, const void* x, int64_t x_stride, int64_t rows, int64_t in, int64_t out, const void* weight,
    const void* bias, void* y, int wide);

// y [rows, width] = x divided by each row's root mean square, times weight.
HEADRACE_API void headrace_rms_norm(
    int dtype, const void* x, int64_t x_stride, int64_t rows, int64_t width, const void* weight, float eps, void* y);

struct HeadraceBefore {
    int64_t hidden_size, heads, kv_heads, head_dim;
    const void *norm, *qkv, *qkv_bias;     // [hidden_size], [(heads + 2 kv_heads) head_dim, hidden_size], its bias
    const void *query_norm, *key_norm;     // [head_dim] each, or null
    float eps;
};

// hidden [rows, hidden_size] → norm → q, k, v; q and k normed and turned by cos [rows, head_dim] and sin
// [rows, head_dim / 2]; k and v to slots [rows] of one layer's keys and values [slots, kv_heads, head_dim]; q to query
// [rows, heads, head_dim].
HEADRACE_API void headrace_before_attention(
    int dtype, const struct HeadraceBefore* layer, const void* hidden, int64_t rows, const void* cos, const void* sin,
    const int64_t* slots, void* keys, void* values, void* query);

struct HeadraceAfter {
    int64_t hidden_size, attended_size, intermediate_size;
    const void *output, *output_bias;      // [hidden_size, attended_size]
    const void* norm;                      // [hidden_size]
    const void *gate_up, *gate_up_bias;    // [2 intermediate_size, hidden_size]
    const void *down, *down_bias;          // [hidden_size, intermediate_size]
    float eps;
};

// hidden [rows, hidden_size] += output(attended [rows, attended_size]), then += down(silu(gate) * up) of its norm.
HEADRACE_API void headrace_after_attention(
    int dtype, const struct HeadraceAfter* layer, const void* attended, int64_t attended_stride, int64_t rows,
    void* hidden);
