// The walk over keys that all instruction sets share. `Products` multiplies tiles in its own packing:
//
//     Element                 of query, keys, values and out
//     Packed                  of what it packs
//     kRows                   query rows that it multiplies at once
//     padded(head_dim)        floats of a row of sums
//     Guard                   made while a thread computes
//     pack_query(to, from, head_dim, padded)            one row
//     pack_keys(to, rows, head_dim, padded, tile_keys), pack_values(...)   as many as any product here reads
//     scores(to, query, keys, rows, padded, tile_keys)       to[row][kTile]; what is no key may be anything
//     put_weights(to, Vector, Vector)                   2 · kLanes weights
//     kPrecision                                        coefficients of power_of_two for weights
//     add(sums, weights, values, rows, padded, tile_keys)     sums[row][padded] += weights · values
//     unpack(sums, padded)                              puts one row's sums in order
#pragma once

#include "attention.h"
#include "attention_simd.h"

namespace {

constexpr int kTile = 256;        // keys; a multiple of all that a packing needs
constexpr int kPart = 4 * kTile;  // keys that are summed up by themselves, so that threads can share a long context
constexpr int kBlockRows = 384;   // query rows (tokens times heads that share keys) for which keys are packed once
constexpr int64_t kGroupBytes = 512 << 10;  // of sums, for all key/value heads that a piece goes through together
constexpr int64_t kMostScratch = 8 << 20;   // floats that parts may be left in for who adds them up
constexpr float kNothing = -__builtin_inff();

// Aligned memory that is kept by the thread for its next call.
class Workspace {
  public:
    ~Workspace() { std::free(memory_); }

    void reserve(size_t bytes) {
        if (bytes <= size_) return;
        std::free(memory_);
        size_ = (bytes + 4095) / 4096 * 4096;
        memory_ = static_cast<char*>(std::aligned_alloc(4096, size_));
        if (memory_ == nullptr) std::abort();
    }

    char* begin() const { return memory_; }

  private:
    char* memory_ = nullptr;
    size_t size_ = 0;
};

// Cuts memory, or counts how much would be cut where there is none.
class Cutter {
  public:
    explicit Cutter(char* memory) : memory_(memory) {}

    template <class T>
    T* cut(int64_t count) {
        char* const here = memory_ == nullptr ? nullptr : memory_ + used_;
        used_ += (size_t(count) * sizeof(T) + 63) / 64 * 64;
        return reinterpret_cast<T*>(here);
    }

    size_t used() const { return used_; }

  private:
    char* memory_;
    size_t used_ = 0;
};

// What a row has seen: the weights exp2((score - most) · scale) and their products with the values, summed up.
struct Seen {
    float* most;     // [rows]: the greatest score. Differences to it are exact where weights are large.
    float* weights;  // [rows]
    float* sums;     // [rows, padded]
};

// Adds what was seen later to what was seen before; the order is always that of the keys.
void fold(Seen before, Seen later, int64_t rows, int padded, Vector scale, Vector least) {
    for (int64_t row = 0; row < rows; ++row) {
        if (later.most[row] == kNothing) continue;
        const float most = before.most[row] > later.most[row] ? before.most[row] : later.most[row];
        float shrink[kLanes] = {before.most[row] - most, later.most[row] - most};
        store(shrink, power_of_two(load(shrink), scale, least, kFine));
        if (before.most[row] == kNothing) shrink[0] = 0.0f;
        before.most[row] = most;
        before.weights[row] = before.weights[row] * shrink[0] + later.weights[row] * shrink[1];
        float* const sums = before.sums + row * padded;
        const float* const others = later.sums + row * padded;
        for (int at = 0; at < padded; at += kLanes) {
            store(sums + at, fused(load(others + at), all(shrink[1]), load(sums + at) * all(shrink[0])));
        }
    }
}

// Tokens [first, last) of a span, under key/value heads [first_head, last_head), over parts [first_part, last_part).
// Heads are taken together since a token's keys of all heads are neighbours: memory is read in order.
struct Piece {
    const HeadraceAttentionSpan* span;
    int64_t first, last;
    int64_t first_head, last_head;
    int64_t first_part, last_part;
    int64_t unit;     // shares its sums with the pieces of the same unit; -1: it computes all parts
    int64_t scratch;  // where the unit's sums are
};

// A type of this file, so that a vector of it is too.
struct Left {
    std::atomic<int64_t> parts{0};
};

template <class Products>
class Attention {
    using Element = typename Products::Element;
    using Packed = typename Products::Packed;

  public:
    explicit Attention(const HeadraceAttention& call)
        : call_(call),
          shared_(call.heads / call.kv_heads),
          dim_(int(call.head_dim)),
          padded_(Products::padded(int(call.head_dim))),
          block_(shared_ < kBlockRows ? kBlockRows / shared_ : 1),
          scale_(all(call.scale * 1.44269504f)),  // exp as exp2
          least_(all(-100.0f) / scale_) {}

    void run() {
        plan();
        static thread_local Workspace shared;
        shared.reserve(size_t(scratch_) * sizeof(float));
        scratch_memory_ = reinterpret_cast<float*>(shared.begin());
        parallel(int64_t(pieces_.size()), [this](int64_t index) { compute(pieces_[size_t(index)]); });
    }

  private:
    // The first and the last but one part of the keys that these tokens see.
    int64_t first_part(const HeadraceAttentionSpan& span, int64_t token) const {
        return first_key(span, token) / kPart;
    }
    int64_t end_part(const HeadraceAttentionSpan& span, int64_t last) const {
        return (end_key(span, last - 1) + kPart - 1) / kPart;
    }
    int64_t first_key(const HeadraceAttentionSpan& span, int64_t token) const {
        const int64_t end = end_key(span, token);
        return call_.window > 0 && end > call_.window ? end - call_.window : 0;
    }
    int64_t end_key(const HeadraceAttentionSpan& span, int64_t token) const {
        return span.context - span.length + token + 1;
    }

    void plan() {
        const int threads = headrace_get_threads();
        int64_t work = 0, blocks = 0;
        for (int64_t at = 0; at < call_.span_count; ++at) {
            const HeadraceAttentionSpan& span = call_.spans[at];
            work += span.length * span.context;
            blocks += (span.length + block_ - 1) / block_;
        }
        // With few blocks, threads share their heads.
        const int64_t most_heads = threads > 1 && blocks < 4 * threads ? 1 : call_.kv_heads;
        // A block that is more than its share of all work is shared by threads, part by part.
        const int64_t share = work / (4 * threads) + 1;
        for (int64_t at = 0; at < call_.span_count; ++at) {
            const HeadraceAttentionSpan& span = call_.spans[at];
            for (int64_t first = 0; first < span.length; first += block_) {
                const int64_t last = first + block_ < span.length ? first + block_ : span.length;
                const int64_t begin = first_part(span, first), end = end_part(span, last);
                const int64_t rows = filled((last - first) * shared_);
                const int64_t fitting = kGroupBytes / (rows * padded_ * int64_t(sizeof(float)));
                const int64_t left = (end - begin) * call_.kv_heads * rows * (padded_ + 2);
                const bool apart = threads > 1 && end - begin > 1 && scratch_ + left <= kMostScratch &&
                                   (last - first) * (end - begin) * kPart > share;
                const int64_t group = apart ? call_.kv_heads : most_heads;
                const int64_t heads = fitting < 1 ? 1 : fitting < group ? fitting : group;
                for (int64_t head = 0; head < call_.kv_heads; head += heads) {
                    const int64_t last_head = head + heads < call_.kv_heads ? head + heads : call_.kv_heads;
                    if (!apart) {
                        pieces_.push_back({&span, first, last, head, last_head, begin, end, -1, 0});
                        continue;
                    }
                    for (int64_t part = begin; part < end; ++part) {
                        pieces_.push_back({&span, first, last, head, last_head, part, part + 1, units_, scratch_});
                    }
                    ++units_;
                    scratch_ += (end - begin) * (last_head - head) * rows * (padded_ + 2);
                }
            }
        }
        left_ = std::vector<Left>(size_t(units_));
        for (const Piece& piece : pieces_) {
            if (piece.unit >= 0) left_[size_t(piece.unit)].parts.fetch_add(1, std::memory_order_relaxed);
        }
    }

    // Rows of one head, filled up to what is multiplied at once.
    static int64_t filled(int64_t rows) { return (rows + Products::kRows - 1) / Products::kRows * Products::kRows; }
    int64_t rows_of(const Piece& piece) const { return (piece.last - piece.first) * shared_; }
    int64_t heads_of(const Piece& piece) const { return piece.last_head - piece.first_head; }

    // What one thread works in.
    struct Room {
        Packed *query, *keys, *values, *weights;
        float *scores, *lane_sums;
        Seen part, all;
        const Element** key_rows;
        const Element** value_rows;
        Element* zeros;
    };

    Room room(Cutter& cutter, int64_t rows) const {
        const auto seen = [&] {
            return Seen{cutter.cut<float>(rows), cutter.cut<float>(rows), cutter.cut<float>(rows * padded_)};
        };
        Room made;
        made.query = cutter.cut<Packed>(rows * padded_);
        made.keys = cutter.cut<Packed>(kTile * padded_);
        made.values = cutter.cut<Packed>(kTile * padded_);
        made.weights = cutter.cut<Packed>(Products::kRows * kTile);
        made.scores = cutter.cut<float>(Products::kRows * kTile);
        made.lane_sums = cutter.cut<float>(rows * kLanes);
        made.part = seen();
        made.all = seen();
        made.key_rows = cutter.cut<const Element*>(kTile);
        made.value_rows = cutter.cut<const Element*>(kTile);
        made.zeros = cutter.cut<Element>(padded_);
        return made;
    }

    void compute(const Piece& piece) {
        const typename Products::Guard guard;
        static thread_local Workspace own;
        const int64_t rows = heads_of(piece) * filled(rows_of(piece));
        Cutter counter(nullptr);
        room(counter, rows);
        own.reserve(counter.used());
        Cutter cutter(own.begin());
        Room made = room(cutter, rows);
        std::memset(made.zeros, 0, size_t(padded_) * sizeof(Element));
        pack_query(piece, made);
        Seen seen = made.part;
        for (int64_t part = piece.first_part; part < piece.last_part; ++part) {
            see(piece, part, made, rows);
            if (part == piece.first_part && part + 1 < piece.last_part) {
                std::swap(made.part, made.all);
                seen = made.all;
            } else if (part > piece.first_part) {
                fold(seen, made.part, rows, padded_, scale_, least_);
            }
        }
        if (piece.unit < 0) {
            write(piece, seen);
        } else {
            share(piece, seen, rows);
        }
    }

    void pack_query(const Piece& piece, const Room& made) const {
        const int64_t rows = rows_of(piece), all_rows = filled(rows);
        for (int64_t head = piece.first_head; head < piece.last_head; ++head) {
            Packed* const to = made.query + (head - piece.first_head) * all_rows * padded_;
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t token = piece.span->row + piece.first + row / shared_;
                const int64_t from = token * call_.query_stride + (head * shared_ + row % shared_) * dim_;
                const Element* const query = static_cast<const Element*>(call_.query) + from;
                Products::pack_query(to + row * padded_, query, dim_, padded_);
            }
            std::memset(to + rows * padded_, 0, size_t((all_rows - rows) * padded_) * sizeof(Packed));
        }
    }

    // The keys of one part, into made.part.
    void see(const Piece& piece, int64_t part, const Room& made, int64_t all_rows) const {
        const HeadraceAttentionSpan& span = *piece.span;
        for (int64_t row = 0; row < all_rows; ++row) made.part.most[row] = kNothing;
        std::memset(made.lane_sums, 0, size_t(all_rows) * kLanes * sizeof(float));
        std::memset(made.part.sums, 0, size_t(all_rows * padded_) * sizeof(float));
        const int64_t first_seen = first_key(span, piece.first), end_seen = end_key(span, piece.last - 1);
        const int64_t part_end = (part + 1) * kPart < end_seen ? (part + 1) * kPart : end_seen;
        const int64_t part_first = part * kPart > first_seen ? part * kPart : first_seen / kTile * kTile;
        const int64_t rows = rows_of(piece);
        for (int64_t tile = part_first; tile < part_end; tile += kTile) {
            for (int64_t head = piece.first_head; head < piece.last_head; ++head) {
                pack_tile(piece, tile, head, first_seen, part_end, made);
                for (int64_t at = 0; at < rows; at += Products::kRows) {
                    const int64_t count = at + Products::kRows < rows ? Products::kRows : rows - at;
                    see_tile(piece, tile, at, count, (head - piece.first_head) * filled(rows) + at, made);
                }
            }
        }
        for (int64_t row = 0; row < all_rows; ++row) {
            made.part.weights[row] = sum(load(made.lane_sums + row * kLanes));
        }
    }

    // What no token of the piece sees is taken for zeros: it may be anything, also NaN.
    void pack_tile(const Piece& piece, int64_t tile, int64_t head, int64_t first_seen, int64_t end_seen,
                   const Room& made) const {
        const int64_t slot_size = call_.kv_heads * dim_, offset = head * dim_;
        const Element* keys = static_cast<const Element*>(call_.keys) + offset;
        const Element* values = static_cast<const Element*>(call_.values) + offset;
        for (int at = 0; at < kTile; ++at) {
            const int64_t key = tile + at;
            const bool is_seen = key >= first_seen && key < end_seen;
            const int64_t place = is_seen ? piece.span->slots[key] * slot_size : 0;
            made.key_rows[at] = is_seen ? keys + place : made.zeros;
            made.value_rows[at] = is_seen ? values + place : made.zeros;
        }
        const int keys_seen = int(end_seen - tile < kTile ? end_seen - tile : kTile);
        Products::pack_keys(made.keys, made.key_rows, dim_, padded_, keys_seen);
        Products::pack_values(made.values, made.value_rows, dim_, padded_, keys_seen);
    }

    // `count` rows of one head, from its row `at` on, over one tile of keys; they lie from row `place` on.
    void see_tile(const Piece& piece, int64_t tile, int64_t at, int64_t count, int64_t place, const Room& made) const {
        const HeadraceAttentionSpan& span = *piece.span;
        const int64_t last_token = piece.first + (at + count - 1) / shared_;
        const int64_t reach = end_key(span, last_token) - tile;
        const int64_t first = first_key(span, piece.first + at / shared_) - tile;
        if (reach <= 0 || first >= kTile) {
            return;  // all hidden from these rows
        }
        const int keys = int(reach < kTile ? reach : kTile);
        Products::scores(made.scores, made.query + place * padded_, made.keys, int(count), padded_, keys);
        // The last row sees the latest keys, the first row the earliest.
        const int64_t last_first = first_key(span, last_token) - tile;
        if (last_first <= 0 && end_key(span, piece.first + at / shared_) - tile >= kTile) {
            weigh<true>(made, place, int(count), kTile, nullptr);
        } else {
            Range ranges[Products::kRows];
            for (int64_t row = 0; row < count; ++row) {
                const int64_t token = piece.first + (at + row) / shared_;
                const int64_t from = first_key(span, token) - tile, to = end_key(span, token) - tile;
                ranges[row].begin = int(from > 0 ? from < kTile ? from : kTile : 0);
                ranges[row].end = int(to > 0 ? to < kTile ? to : kTile : 0);
            }
            weigh<false>(made, place, int(count), keys, ranges);
        }
        Products::add(made.part.sums + place * padded_, made.weights, made.values, int(count), padded_, keys);
    }

    // Keys [begin, end) of a tile.
    struct Range {
        int begin, end;
    };

    // Turns the scores of `count` rows and `tile_keys` keys into weights; of each row all keys are seen if kWhole, else
    // those of its range.
    // First all the maxima, then all the weights: one row after another would wait for each maximum.
    template <bool kWhole>
    void weigh(const Room& made, int64_t place, int count, int tile_keys, const Range* ranges) const {
        const int end = kWhole ? kTile : (tile_keys + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes);
        const Vector scale = scale_, least = least_;
        const Integers lanes = lane_numbers();
        float* const most = made.part.most + place;
        float* const lane_sums = made.lane_sums + place * kLanes;
        const auto seen_of = [&](int row, int key, Vector vector, Vector hidden) {
            if (kWhole) return vector;
            return ((lanes + key >= ranges[row].begin) & (lanes + key < ranges[row].end)) ? vector : hidden;
        };
        for (int row = 0; row < count; ++row) {
            const float* const scores = made.scores + row * kTile;
            Vector found[2] = {all(kNothing), all(kNothing)};
#pragma GCC unroll 8
            for (int key = 0; key < end; key += 2 * kLanes) {
                found[0] = greater(seen_of(row, key, load(scores + key), all(kNothing)), found[0]);
                found[1] = greater(seen_of(row, key + kLanes, load(scores + key + kLanes), all(kNothing)), found[1]);
            }
            const float before = most[row], now = greatest(greater(found[0], found[1]));
            if (!(now <= before)) {
                raise(made, place + row, before, now);
                most[row] = now;
            }
        }
        for (int row = 0; row < count; ++row) {
            const float* const scores = made.scores + row * kTile;
            Packed* const weights = made.weights + row * kTile;
            if (!kWhole && ranges[row].begin >= ranges[row].end) {
                std::memset(weights, 0, kTile * sizeof(Packed));
                continue;
            }
            const Vector peak = all(most[row]);
            Vector sums = load(lane_sums + row * kLanes);
#pragma GCC unroll 4
            for (int key = 0; key < end; key += 2 * kLanes) {
                Vector pair[2];
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    const Vector lower = load(scores + key + half * kLanes) - peak;
                    const Vector weight = power_of_two(lower, scale, least, Products::kPrecision);
                    pair[half] = seen_of(row, key + half * kLanes, weight, Vector{});
                    sums = sums + pair[half];
                }
                Products::put_weights(weights + key, pair[0], pair[1]);
            }
            store(lane_sums + row * kLanes, sums);
        }
    }

    // A greater score than all before makes all weights before smaller.
    void raise(const Room& made, int64_t row, float before, float now) const {
        if (before == kNothing) return;
        const Vector shrink = power_of_two(all(before - now), scale_, least_, kFine);
        float* const sums = made.part.sums + row * padded_;
        for (int at = 0; at < padded_; at += kLanes) store(sums + at, load(sums + at) * shrink);
        store(made.lane_sums + row * kLanes, load(made.lane_sums + row * kLanes) * shrink);
    }

    void write(const Piece& piece, Seen seen) const {
        const int64_t rows = rows_of(piece);
        for (int64_t head = piece.first_head; head < piece.last_head; ++head) {
            const int64_t place = (head - piece.first_head) * filled(rows);
            for (int64_t row = 0; row < rows; ++row) {
                float* const sums = seen.sums + (place + row) * padded_;
                Products::unpack(sums, padded_);
                const Vector share = all(1.0f / seen.weights[place + row]);
                for (int at = 0; at < padded_; at += kLanes) store(sums + at, load(sums + at) * share);
                const int64_t token = piece.span->row + piece.first + row / shared_;
                const int64_t to = (token * call_.heads + head * shared_ + row % shared_) * dim_;
                for (int at = 0; at < dim_; ++at) put(static_cast<Element*>(call_.out) + to + at, sums[at]);
            }
        }
    }

    Seen scratch(const Piece& piece, int64_t part, int64_t rows) const {
        float* const memory = scratch_memory_ + piece.scratch + part * rows * (padded_ + 2);
        return {memory, memory + rows, memory + 2 * rows};
    }

    // Leaves one part's sums in the scratch; who leaves the last one of a unit folds them all.
    void share(const Piece& piece, Seen seen, int64_t rows) {
        const int64_t begin = first_part(*piece.span, piece.first), end = end_part(*piece.span, piece.last);
        const Seen place = scratch(piece, piece.first_part - begin, rows);
        std::memcpy(place.most, seen.most, size_t(rows) * sizeof(float));
        std::memcpy(place.weights, seen.weights, size_t(rows) * sizeof(float));
        std::memcpy(place.sums, seen.sums, size_t(rows * padded_) * sizeof(float));
        if (left_[size_t(piece.unit)].parts.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
        const Seen whole = scratch(piece, 0, rows);
        for (int64_t part = 1; part < end - begin; ++part) {
            fold(whole, scratch(piece, part, rows), rows, padded_, scale_, least_);
        }
        write(piece, whole);
    }

    const HeadraceAttention& call_;
    const int64_t shared_;
    const int dim_, padded_;
    const int64_t block_;
    const Vector scale_, least_;
    std::vector<Piece> pieces_;
    std::vector<Left> left_;
    int64_t units_ = 0, scratch_ = 0;
    float* scratch_memory_ = nullptr;
};

}  // namespace
