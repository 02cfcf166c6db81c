#include "parts.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels.h"

namespace {

using namespace headrace;

// Rows that go through a part together: more would want more memory between its steps, fewer read weights more often.
constexpr int64_t kMostRows = 1024;
// A piece of a product should read so much of the weights, or compute so many of x's rows with it.
constexpr int64_t kPieceBytes = 64 << 10;
constexpr int64_t kPieceRows = 256;

int64_t pieces_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// The calling thread's memory between the steps of a part; it grows to the largest that was asked for.
class Scratch {
   public:
    ~Scratch() { std::free(memory_); }

    // Room for `bytes`, as it was left by the call before.
    char* reserve(int64_t bytes) {
        if (bytes > size_) {
            std::free(memory_);
            size_ = 0;
            bytes = pieces_of(bytes, kAlignment) * kAlignment;
            memory_ = static_cast<char*>(std::aligned_alloc(kAlignment, bytes));
            if (!memory_) std::abort();
            size_ = bytes;
        }
        return memory_;
    }

    static constexpr int64_t kAlignment = 4096;

   private:
    char* memory_ = nullptr;
    int64_t size_ = 0;
};

char* scratch(int64_t bytes) {
    static thread_local Scratch own;
    return own.reserve(bytes);
}

struct Part {
    explicit Part(int dtype)
        : kernels(kernels_for(static_cast<Dtype>(dtype))), item(dtype == kBfloat16 ? 2 : 4) {}

    const Kernels& kernels;
    const int64_t item;  // bytes

    const char* at(const void* base, int64_t element) const {
        return static_cast<const char*>(base) + element * item;
    }
    char* at(void* base, int64_t element) const { return static_cast<char*>(base) + element * item; }

    int64_t prepared_bytes(int64_t rows, int64_t in) const {
        return pieces_of(kernels.prepared_size(rows, in) * item, 64) * 64;
    }

    // x [rows, in], normed on the way where `norm` is not null; one row's room for each block at `normed`.
    void prepare(const void* x, int64_t stride, int64_t rows, int64_t in, const void* norm, float eps, char* normed,
                 char* prepared) const {
        parallel(pieces_of(rows, kRowBlock), [&](int64_t piece) {
            const int64_t first = piece * kRowBlock, some = std::min(kRowBlock, rows - first);
            const void* from = at(x, first * stride);
            int64_t from_stride = stride;
            if (norm) {
                char* const own = at(static_cast<void*>(normed), first * in);
                for (int64_t row = 0; row < some; ++row) {
                    kernels.norm(at(from, row * stride), norm, eps, in, at(static_cast<void*>(own), row * in));
                }
                from = own, from_stride = in;
            }
            kernels.prepare(from, from_stride, first, some, in, prepared);
        });
    }

    void product(const Product& p) const {
        const int64_t row_bytes = p.in * item * (p.store == kGate ? 2 : 1);
        const int64_t outs = std::max<int64_t>(1, kPieceBytes / (row_bytes * kBlock)) * kBlock;
        const int64_t bands = pieces_of(p.rows, kPieceRows);
        parallel(pieces_of(p.out, outs) * bands, [&](int64_t piece) {
            const int64_t out = piece / bands * outs, row = piece % bands * kPieceRows;
            kernels.product(p, out, std::min(outs, p.out - out), row, std::min(kPieceRows, p.rows - row));
        });
    }
};

}  // namespace

void headrace_linear(int dtype, const void* x, int64_t x_stride, int64_t rows, int64_t in, int64_t out,
                     const void* weight, const void* bias, void* y, int wide) {
    const Part part(dtype);
    const int64_t y_item = wide ? 4 : part.item;
    char* const prepared = scratch(part.prepared_bytes(std::min(rows, kMostRows), in));
    for (int64_t first = 0; first < rows; first += kMostRows) {
        const int64_t some = std::min(kMostRows, rows - first);
        part.prepare(part.at(x, first * x_stride), x_stride, some, in, nullptr, 0, nullptr, prepared);
        void* const to = static_cast<char*>(y) + first * out * y_item;
        part.product({prepared, some, in, out, weight, bias, to, out, wide ? kStoreFloat : kStore});
    }
}

void headrace_rms_norm(int dtype, const void* x, int64_t x_stride, int64_t rows, int64_t width, const void* weight,
                       float eps, void* y) {
    const Part part(dtype);
    parallel(pieces_of(rows, kRowBlock), [&](int64_t piece) {
        const int64_t last = std::min(rows, (piece + 1) * kRowBlock);
        for (int64_t row = piece * kRowBlock; row < last; ++row) {
            part.kernels.norm(part.at(x, row * x_stride), weight, eps, width, part.at(y, row * width));
        }
    });
}

void headrace_before_attention(int dtype, const HeadraceBefore* layer, const void* hidden, int64_t rows,
                               const void* cos, const void* sin, const int64_t* slots, void* keys, void* values,
                               void* query) {
    const Part part(dtype);
    const int64_t in = layer->hidden_size, dim = layer->head_dim, heads = layer->heads, kv_heads = layer->kv_heads;
    const int64_t out = (heads + 2 * kv_heads) * dim, most = std::min(rows, kMostRows);
    const int64_t prepared_bytes = part.prepared_bytes(most, in);
    char* const prepared = scratch(prepared_bytes + most * std::max(out, in) * part.item);
    char* const between = prepared + prepared_bytes;  // the normed rows, then q, k and v
    for (int64_t first = 0; first < rows; first += kMostRows) {
        const int64_t some = std::min(kMostRows, rows - first);
        part.prepare(part.at(hidden, first * in), in, some, in, layer->norm, layer->eps, between, prepared);
        part.product({prepared, some, in, out, layer->qkv, layer->qkv_bias, between, out, kStore});
        parallel(pieces_of(some, kRowBlock), [&](int64_t piece) {
            const int64_t last = std::min(some, (piece + 1) * kRowBlock);
            for (int64_t row = piece * kRowBlock; row < last; ++row) {
                const int64_t token = first + row;
                char* const qkv = part.at(static_cast<void*>(between), row * out);
                const void* const own_cos = part.at(cos, token * dim);
                const void* const own_sin = part.at(sin, token * (dim / 2));
                void* const key = part.at(keys, slots[token] * kv_heads * dim);
                for (int64_t head = 0; head < heads + kv_heads; ++head) {
                    char* const turning = part.at(static_cast<void*>(qkv), head * dim);
                    const void* const norm = head < heads ? layer->query_norm : layer->key_norm;
                    if (norm) part.kernels.norm(turning, norm, layer->eps, dim, turning);
                    void* const to = head < heads ? part.at(query, (token * heads + head) * dim)
                                                  : part.at(key, (head - heads) * dim);
                    part.kernels.rotate(turning, own_cos, own_sin, dim, to);
                }
                std::memcpy(part.at(values, slots[token] * kv_heads * dim),
                            part.at(static_cast<void*>(qkv), (heads + kv_heads) * dim), kv_heads * dim * part.item);
            }
        });
    }
}

void headrace_after_attention(int dtype, const HeadraceAfter* layer, const void* attended, int64_t attended_stride,
                              int64_t rows, void* hidden) {
    const Part part(dtype);
    const int64_t width = layer->hidden_size, inner = layer->intermediate_size, wide = layer->attended_size;
    const int64_t most = std::min(rows, kMostRows);
    const int64_t first_bytes = part.prepared_bytes(most, std::max(width, wide));
    const int64_t second_bytes = std::max(part.prepared_bytes(most, inner), most * width * part.item);
    char* const prepared = scratch(first_bytes + second_bytes);
    char* const between = prepared + first_bytes;  // the normed rows, then the gated ones, prepared
    for (int64_t first = 0; first < rows; first += kMostRows) {
        const int64_t some = std::min(kMostRows, rows - first);
        void* const own = part.at(hidden, first * width);
        part.prepare(part.at(attended, first * attended_stride), attended_stride, some, wide, nullptr, 0, nullptr,
                     prepared);
        part.product({prepared, some, wide, width, layer->output, layer->output_bias, own, width, kAdd});
        part.prepare(own, width, some, width, layer->norm, layer->eps, between, prepared);
        part.product({prepared, some, width, inner, layer->gate_up, layer->gate_up_bias, between, 0, kGate});
        part.product({between, some, inner, width, layer->down, layer->down_bias, own, width, kAdd});
    }
}
