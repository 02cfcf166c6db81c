// What is written once for each instruction set: products with the weights of a layer, and what is done to a row.
// A source file for an instruction set fills a table for each dtype; cpu.cpp picks the table; parts.cpp calls it.
//
// Pointers to void are to elements of the table's dtype. Rows of a product are "prepared" first: laid out as the
// instruction set reads them best, and filled up with zeros. Only prepare, product (kGate) and prepared_size know how.
#pragma once

#include <cstdint>

namespace headrace {

enum Dtype { kFloat32 = 0, kBfloat16 = 1 };

enum Store {
    kStore,       // y [rows, out]
    kStoreFloat,  // the same in float32
    kAdd,         // added to y [rows, out]
    kGate,        // silu(row o) * (row out + o) for o < out, prepared for the next product; 2 * out rows of weight
};

// x [rows, in] times weight [out, in] transposed plus bias [out] or null.
struct Product {
    const void* x;  // prepared
    int64_t rows, in, out;
    const void* weight;
    const void* bias;
    void* y;
    int64_t y_stride;  // elements from row to row
    Store store;
};

// Rows are prepared, and outputs computed, in blocks of so many; a product's last block of each may be smaller.
constexpr int64_t kRowBlock = 16;
constexpr int64_t kBlock = 32;

// A row's result depends on that row alone: not on how many others there are, nor on where it stands.
struct Kernels {
    // Elements that `rows` rows of `in` take when prepared.
    int64_t (*prepared_size)(int64_t rows, int64_t in);

    // Rows [first, first + rows) of those that begin at `prepared`, from x, which begins with row `first`; `first` is
    // a multiple of kRowBlock.
    void (*prepare)(const void* x, int64_t stride, int64_t first, int64_t rows, int64_t in, void* prepared);

    // A product's outputs [first_out, first_out + outs) for rows [first_row, first_row + rows); both firsts are
    // multiples of kBlock.
    void (*product)(const Product& product, int64_t first_out, int64_t outs, int64_t first_row, int64_t rows);

    // One row divided by its root mean square, rounded, times weight; y may be x.
    void (*norm)(const void* x, const void* weight, float eps, int64_t width, void* y);

    // The halves of x [head_dim] turned against each other: cos [head_dim] (each half the same), sin [head_dim / 2].
    void (*rotate)(const void* x, const void* cos, const void* sin, int64_t head_dim, void* y);
};

// One instruction set; null where it has nothing of its own for a dtype.
struct InstructionSet {
    const char* name;
    bool (*is_here)();
    const Kernels* kernels[2];  // by Dtype
};

extern const InstructionSet kGeneric, kAvx2, kAvx512Bf16, kAmxBf16;

// The best that this machine has, or what `headrace_use` chose.
const Kernels& kernels_for(Dtype dtype);

}  // namespace headrace
