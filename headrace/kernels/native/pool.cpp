#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace {

using Run = void (*)(void*, int64_t);
using Clock = std::chrono::steady_clock;

constexpr int kMostThreads = 512;
constexpr int kSpins = 64;  // ~2 µs
constexpr auto kAwake = std::chrono::microseconds(200);

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Generation and next piece in one word, so that a thread that comes late to a job cannot take a piece of the next
// one by mistake. An even generation is open; while a job is written down its generation is odd.
constexpr uint64_t kGeneration = uint64_t(1) << 32;
inline bool is_open(uint64_t state) { return (state >> 32) % 2 == 0; }
inline int64_t next_piece(uint64_t state) { return int64_t(state % kGeneration); }

// Never destroyed: its threads are detached and may wait in it while the process ends.
struct Pool {
    std::atomic<uint64_t> state{0};
    std::atomic<int64_t> pieces{0};
    std::atomic<Run> run{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<int64_t> done{0};

    std::atomic<bool> taken{false};
    std::atomic<int> threads{1};
    int started = 1;  // guarded by `taken`

    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<int> sleeping{0};

    // Takes pieces until none is left; the state that it last saw.
    uint64_t work() {
        int64_t computed = 0;
        uint64_t seen = state.load(std::memory_order_acquire);
        while (is_open(seen)) {
            // These belong to `seen` if the exchange succeeds: they change only while the generation is odd.
            const int64_t count = pieces.load(std::memory_order_relaxed);
            const Run body = run.load(std::memory_order_relaxed);
            void* const argument = context.load(std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (next_piece(seen) >= count) break;
            if (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
                continue;
            }
            body(argument, next_piece(seen));
            ++computed;
            seen = state.load(std::memory_order_acquire);
            if (next_piece(seen) >= count) break;  // a job with a piece that is not counted yet stays open
        }
        if (computed) done.fetch_add(computed, std::memory_order_release);
        return seen;
    }

    void serve(int index) {
        uint64_t seen = 0;
        for (;;) {
            await(seen);
            seen = state.load(std::memory_order_acquire);
            if (index < threads.load(std::memory_order_relaxed)) seen = work();
        }
    }

    // Returns when there may be a job of another generation than that of `seen`.
    void await(uint64_t seen) {
        const auto is_new = [&] {
            const uint64_t now = state.load(std::memory_order_seq_cst);
            return is_open(now) && now / kGeneration != seen / kGeneration;
        };
        for (int spin = 0; spin < kSpins; ++spin) {
            if (is_new()) return;
            pause();
        }
        // From here on whoever else wants this core has it.
        for (const auto until = Clock::now() + kAwake; Clock::now() < until; sched_yield()) {
            if (is_new()) return;
        }
        std::unique_lock<std::mutex> lock(mutex);
        sleeping.fetch_add(1, std::memory_order_seq_cst);
        wake.wait(lock, is_new);
        sleeping.fetch_sub(1, std::memory_order_relaxed);
    }

    void start_threads() {
        const int wanted = threads.load(std::memory_order_relaxed);
        if (started >= wanted) return;
        // Signals are for the threads of the interpreter.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (; started < wanted; ++started) {
                std::thread([this, index = started] { serve(index); }).detach();
            }
        } catch (const std::system_error&) {
            // No more threads are to be had: those that there are compute everything.
            threads.store(started, std::memory_order_relaxed);
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void publish(int64_t count, Run body, void* argument) {
        const uint64_t closed = (state.load(std::memory_order_relaxed) / kGeneration + 1) * kGeneration;
        state.store(closed, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release);
        pieces.store(count, std::memory_order_relaxed);
        run.store(body, std::memory_order_relaxed);
        context.store(argument, std::memory_order_relaxed);
        done.store(0, std::memory_order_relaxed);
        state.store(closed + kGeneration, std::memory_order_seq_cst);
        if (sleeping.load(std::memory_order_seq_cst)) {
            { std::lock_guard<std::mutex> lock(mutex); }
            wake.notify_all();
        }
    }

    void finish(int64_t count) {
        for (int spin = 0; done.load(std::memory_order_acquire) != count; ++spin) {
            if (spin < kSpins) {
                pause();
            } else {
                sched_yield();  // a thread with the last piece may be waiting for this very core
            }
        }
    }
};

std::atomic<Pool*> pool{nullptr};

// A forked child has none of its parent's threads: it starts with a pool of its own.
void leave_to_parent() {
    Pool* const own = new Pool;
    own->threads.store(pool.load()->threads.load());
    pool.store(own);
}

Pool& the_pool() {
    static std::once_flag once;
    std::call_once(once, [] {
        pool.store(new Pool);
        pthread_atfork(nullptr, nullptr, leave_to_parent);
    });
    return *pool.load(std::memory_order_acquire);
}

}  // namespace

void headrace_parallel(int64_t pieces, Run run, void* context) {
    Pool& shared = the_pool();
    const bool alone = pieces <= 1 || pieces >= int64_t(kGeneration) || shared.threads.load() <= 1 ||
                       shared.taken.exchange(true, std::memory_order_acquire);
    if (alone) {
        for (int64_t piece = 0; piece < pieces; ++piece) run(context, piece);
        return;
    }
    shared.start_threads();
    shared.publish(pieces, run, context);
    shared.work();
    shared.finish(pieces);
    shared.taken.store(false, std::memory_order_release);
}

void headrace_set_threads(int count) { the_pool().threads.store(std::min(std::max(count, 1), kMostThreads)); }

int headrace_get_threads(void) { return the_pool().threads.load(); }
