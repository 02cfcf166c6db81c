// Any machine: loops that the compiler turns into whatever vectors it may assume.
#include "kernels.h"

namespace headrace {
namespace {

#include "numbers.inc"
#include "rows.inc"

template <class T>
struct Lanes {
    static constexpr int64_t kWidth = 8, kOuts = 2, kRows = 2;
    struct Vector {
        float lane[kWidth];
    };
    using Sum = Vector;

    static inline Vector load(const T* from) {
        Vector v;
        for (int64_t i = 0; i < kWidth; ++i) v.lane[i] = wide(from[i]);
        return v;
    }
    static inline Sum zero() { return {}; }
    static inline Sum add_products(Sum sum, const Vector& a, const Vector& b) {
        for (int64_t i = 0; i < kWidth; ++i) sum.lane[i] += a.lane[i] * b.lane[i];
        return sum;
    }
    static inline void totals(const Sum* sums, float* to) {
        for (int64_t o = 0; o < kOuts; ++o) {
            Sum sum = sums[o];
            for (int64_t half = kWidth / 2; half; half /= 2) {
                for (int64_t i = 0; i < half; ++i) sum.lane[i] += sum.lane[i + half];
            }
            to[o] = sum.lane[0];
        }
    }
};

#include "dots.inc"
#include "product.inc"

constexpr Kernels kFloat = table<float>(), kBf16 = table<bf16>();
bool always() { return true; }

}  // namespace

const InstructionSet kGeneric = {"generic", always, {&kFloat, &kBf16}};

}  // namespace headrace
