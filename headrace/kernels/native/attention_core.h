// The walk over keys that all instruction sets share. `Products` multiplies tiles in its own packing:
//
//     Element                 of query, keys, values and out
//     Packed                  of what it packs
//     kRows                   query rows that it multiplies at once
//     padded(head_dim)        floats of a row of sums
//     Guard                   made while a thread computes
//     pack_query(to, from, head_dim)                    one row
//     pack_keys(to, rows, head_dim), pack_values(...)   kTile rows
//     scores(to, query, keys, rows, head_dim, tile_keys)     to[row][kTile]
//     put_weights(to, Vector)                           kLanes weights
//     add(sums, weights, values, rows, head_dim, tile_keys)  sums[row][padded] += weights · values
//     unpack(sums, head_dim)                            puts one row's sums in order
#pragma once

#include "attention.h"
#include "attention_simd.h"

namespace {

constexpr int kTile = 128;        // keys; a multiple of all that a packing needs
constexpr int kPart = 8 * kTile;  // keys that are summed up by themselves, so that threads can share a long context
constexpr int kBlockRows = 384;   // query rows (tokens times heads that share keys) for which keys are packed once
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
void fold(Seen before, Seen later, int64_t rows, int padded, float scale) {
    for (int64_t row = 0; row < rows; ++row) {
        if (later.most[row] == kNothing) continue;
        const float most = before.most[row] > later.most[row] ? before.most[row] : later.most[row];
        float shrink[kLanes] = {before.most[row] - most, later.most[row] - most};
        store(shrink, power_of_two(load(shrink) * scale));
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

// Tokens [first, last) of a span, under one key/value head, over parts [first_part, last_part) of the keys.
struct Piece {
    const HeadraceAttentionSpan* span;
    int64_t first, last;
    int64_t kv_head;
    int64_t first_part, last_part;
    int64_t shared_sums;  // where its unit's sums of each part go in the scratch; -1: it computes all parts
    int64_t unit;
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
          scale_(call.scale * 1.44269504f) {}  // exp as exp2

    void run() {
        plan();
        static thread_local Workspace shared;
        shared.reserve(size_t(scratch_) * sizeof(float));
        scratch_memory_ = reinterpret_cast<float*>(shared.begin());
        parallel(int64_t(pieces_.size()), [this](int64_t index) { compute(pieces_[size_t(index)]); });
    }

  private:
    // The first and the last but one part of the keys that these tokens see.
    int64_t first_part(const HeadraceAttentionSpan& span, int64_t token) const { return first_key(span, token) / kPart; }
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
        int64_t work = 0;
        for (int64_t at = 0; at < call_.span_count; ++at) work += call_.spans[at].length * call_.spans[at].context;
        // A block that is more than its share of all work is shared by threads, part by part.
        const int threads = headrace_get_threads();
        const int64_t share = work / (4 * threads) + 1;
        int64_t units = 0;
        for (int64_t at = 0; at < call_.span_count; ++at) {
            const HeadraceAttentionSpan& span = call_.spans[at];
            for (int64_t first = 0; first < span.length; first += block_) {
                const int64_t last = first + block_ < span.length ? first + block_ : span.length;
                const int64_t begin = first_part(span, first), end = end_part(span, last);
                const bool apart = threads > 1 && end - begin > 1 &&
                                   (last - first) * (end - begin) * kPart > share * call_.kv_heads;
                for (int64_t head = 0; head < call_.kv_heads; ++head) {
                    if (!apart) {
                        pieces_.push_back({&span, first, last, head, begin, end, -1, -1});
                        continue;
                    }
                    for (int64_t part = begin; part < end; ++part) {
                        pieces_.push_back({&span, first, last, head, part, part + 1, scratch_, units});
                    }
                    ++units;
                    scratch_ += (end - begin) * (last - first) * shared_ * (padded_ + 2);
                }
            }
        }
        left_ = std::vector<Left>(size_t(units));
        for (const Piece& piece : pieces_) {
            if (piece.unit >= 0) left_[size_t(piece.unit)].parts.fetch_add(1, std::memory_order_relaxed);
        }
    }

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
        const int64_t filled = (rows + Products::kRows - 1) / Products::kRows * Products::kRows;
        const auto seen = [&] {
            return Seen{cutter.cut<float>(filled), cutter.cut<float>(filled), cutter.cut<float>(filled * padded_)};
        };
        Room made;
        made.query = cutter.cut<Packed>(filled * padded_);
        made.keys = cutter.cut<Packed>(kTile * padded_);
        made.values = cutter.cut<Packed>(kTile * padded_);
        made.weights = cutter.cut<Packed>(Products::kRows * kTile);
        made.scores = cutter.cut<float>(Products::kRows * kTile);
        made.lane_sums = cutter.cut<float>(filled * kLanes);
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
        const int64_t rows = (piece.last - piece.first) * shared_;
        Cutter counter(nullptr);
        room(counter, rows);
        own.reserve(counter.used());
        Cutter cutter(own.begin());
        Room made = room(cutter, rows);
        std::memset(made.zeros, 0, size_t(padded_) * sizeof(Element));
        pack_query(piece, made, rows);
        Seen seen = made.part;
        for (int64_t part = piece.first_part; part < piece.last_part; ++part) {
            see(piece, part, made, rows);
            if (part == piece.first_part && part + 1 < piece.last_part) {
                std::swap(made.part, made.all);
                seen = made.all;
            } else if (part > piece.first_part) {
                fold(seen, made.part, rows, padded_, scale_);
            }
        }
        if (piece.shared_sums < 0) {
            write(piece, seen, rows);
        } else {
            share(piece, seen, rows);
        }
    }

    void pack_query(const Piece& piece, const Room& made, int64_t rows) const {
        const int64_t filled = (rows + Products::kRows - 1) / Products::kRows * Products::kRows;
        std::memset(made.query + rows * padded_, 0, size_t((filled - rows) * padded_) * sizeof(Packed));
        const Element* query = static_cast<const Element*>(call_.query);
        for (int64_t token = piece.first; token < piece.last; ++token) {
            const Element* from =
                query + (piece.span->row + token) * call_.query_stride + piece.kv_head * shared_ * dim_;
            for (int64_t head = 0; head < shared_; ++head) {
                Packed* const to = made.query + ((token - piece.first) * shared_ + head) * padded_;
                Products::pack_query(to, from + head * dim_, dim_, padded_);
            }
        }
    }

    // The keys of one part, into made.part.
    void see(const Piece& piece, int64_t part, const Room& made, int64_t rows) const {
        const int64_t filled = (rows + Products::kRows - 1) / Products::kRows * Products::kRows;
        const HeadraceAttentionSpan& span = *piece.span;
        for (int64_t row = 0; row < filled; ++row) made.part.most[row] = kNothing;
        std::memset(made.lane_sums, 0, size_t(filled) * kLanes * sizeof(float));
        std::memset(made.part.sums, 0, size_t(filled * padded_) * sizeof(float));
        const int64_t first_seen = first_key(span, piece.first), end_seen = end_key(span, piece.last - 1);
        const int64_t part_end = (part + 1) * kPart < end_seen ? (part + 1) * kPart : end_seen;
        const int64_t part_first = part * kPart > first_seen ? part * kPart : first_seen / kTile * kTile;
        for (int64_t tile = part_first; tile < part_end; tile += kTile) {
            pack_tile(piece, tile, first_seen, part_end, made);
            for (int64_t at = 0; at < rows; at += Products::kRows) {
                const int64_t count = at + Products::kRows < rows ? Products::kRows : rows - at;
                see_tile(piece, tile, at, count, made);
            }
        }
        for (int64_t row = 0; row < rows; ++row) {
            made.part.weights[row] = sum(load(made.lane_sums + row * kLanes));
        }
    }

    // What no token of the piece sees is taken for zeros: it may be anything, also NaN.
    void pack_tile(const Piece& piece, int64_t tile, int64_t first_seen, int64_t end_seen, const Room& made) const {
        const int64_t slot_size = call_.kv_heads * dim_, offset = piece.kv_head * dim_;
        const Element* keys = static_cast<const Element*>(call_.keys) + offset;
        const Element* values = static_cast<const Element*>(call_.values) + offset;
        for (int at = 0; at < kTile; ++at) {
            const int64_t key = tile + at;
            const bool is_seen = key >= first_seen && key < end_seen;
            const int64_t place = is_seen ? piece.span->slots[key] * slot_size : 0;
            made.key_rows[at] = is_seen ? keys + place : made.zeros;
            made.value_rows[at] = is_seen ? values + place : made.zeros;
        }
        Products::pack_keys(made.keys, made.key_rows, dim_, padded_);
        Products::pack_values(made.values, made.value_rows, dim_, padded_);
    }

    // `count` rows from row `at` of the piece on, over one tile of keys.
    void see_tile(const Piece& piece, int64_t tile, int64_t at, int64_t count, const Room& made) const {
        const HeadraceAttentionSpan& span = *piece.span;
        const int64_t last_token = piece.first + (at + count - 1) / shared_;
        const int64_t reach = end_key(span, last_token) - tile;
        const int64_t first = first_key(span, piece.first + at / shared_) - tile;
        if (reach <= 0 || first >= kTile) {
            return;  // all hidden from these rows
        }
        const int keys = int(reach < kTile ? reach : kTile);
        Products::scores(made.scores, made.query + at * padded_, made.keys, int(count), padded_, keys);
        for (int64_t row = 0; row < count; ++row) {
            const int64_t token = piece.first + (at + row) / shared_;
            weigh(made, at + row, int(row), first_key(span, token) - tile, end_key(span, token) - tile);
        }
        Products::add(made.part.sums + at * padded_, made.weights, made.values, int(count), padded_, keys);
    }

    // Turns a row's scores into weights; keys [from, to) of the tile are seen.
    void weigh(const Room& made, int64_t row, int place, int64_t from, int64_t to) const {
        const int begin = int(from < 0 ? 0 : from), end = int(to > kTile ? kTile : to);
        Packed* const weights = made.weights + place * kTile;
        const float* const scores = made.scores + place * kTile;
        if (begin >= end) {
            std::memset(weights, 0, kTile * sizeof(Packed));
            return;
        }
        const Integers lanes = lane_numbers();
        const auto is_whole = [&](int at) { return at >= begin && at + kLanes <= end; };
        const auto is_seen = [&](int at) { return (lanes + at >= begin) & (lanes + at < end); };
        const int first = begin / kLanes * kLanes, last = (end + kLanes - 1) / kLanes * kLanes;
        Vector most = all(kNothing);
        for (int at = first; at < last; at += kLanes) {
            const Vector score = load(scores + at);
            most = greater(is_whole(at) ? score : is_seen(at) ? score : all(kNothing), most);
        }
        const float before = made.part.most[row];
        const float found = greatest(most);
        const float now = found > before ? found : before;
        Vector seen = load(made.lane_sums + row * kLanes);
        if (now != before && before != kNothing) {
            const Vector shrink = power_of_two(all((before - now) * scale_));
            float* const sums = made.part.sums + row * padded_;
            for (int at = 0; at < padded_; at += kLanes) store(sums + at, load(sums + at) * shrink);
            seen = seen * shrink;
        }
        made.part.most[row] = now;
        for (int at = 0; at < first; at += kLanes) Products::put_weights(weights + at, Vector{});
        const Vector scale = all(scale_), peak = all(now);
        for (int at = first; at < last; at += kLanes) {
            Vector weight = power_of_two((load(scores + at) - peak) * scale);
            if (!is_whole(at)) weight = is_seen(at) ? weight : Vector{};
            seen = seen + weight;
            Products::put_weights(weights + at, weight);
        }
        for (int at = last; at < kTile; at += kLanes) Products::put_weights(weights + at, Vector{});
        store(made.lane_sums + row * kLanes, seen);
    }

    void write(const Piece& piece, Seen seen, int64_t rows) const {
        for (int64_t row = 0; row < rows; ++row) {
            float* const sums = seen.sums + row * padded_;
            Products::unpack(sums, padded_);
            const Vector share = all(1.0f / seen.weights[row]);
            const int64_t token = piece.span->row + piece.first + row / shared_;
            Element* const to =
                static_cast<Element*>(call_.out) + (token * call_.heads + piece.kv_head * shared_ + row % shared_) * dim_;
            for (int at = 0; at < padded_; at += kLanes) store(sums + at, load(sums + at) * share);
            for (int at = 0; at < dim_; ++at) put(to + at, sums[at]);
        }
    }

    Seen scratch(const Piece& piece, int64_t part, int64_t rows) const {
        float* const memory = scratch_memory_ + piece.shared_sums + part * rows * (padded_ + 2);
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
        const Seen all = scratch(piece, 0, rows);
        for (int64_t part = 1; part < end - begin; ++part) fold(all, scratch(piece, part, rows), rows, padded_, scale_);
        write(piece, all, rows);
    }

    const HeadraceAttention& call_;
    const int64_t shared_;
    const int dim_, padded_;
    const int64_t block_;
    const float scale_;
    std::vector<Piece> pieces_;
    std::vector<Left> left_;
    int64_t scratch_ = 0;
    float* scratch_memory_ = nullptr;
};

}  // namespace
