// The threads of one parallel region, and how they share work and wait for each other.
#pragma once

#include <immintrin.h>
#include <sched.h>
#include <stdint.h>

#include <atomic>

namespace {

// Work that threads take from a counter, a few at a time: a thread that the system holds up takes less.
struct alignas(64) Counter {
  std::atomic<int64_t> next{0};
  int64_t take(int64_t count) { return next.fetch_add(count, std::memory_order_relaxed); }
};

// A barrier of our own: OpenMP's either sleeps, which takes longer than most phases here, or spins on while another process
// wants the core. This one spins for some microseconds and then yields at every look.
struct Team {
  int size = 1;  // set by `join`: the system may give fewer threads than were asked for
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> generation{0};

  // The first thing that a thread does: `threads` is what the region really has.
  void join(int threads) { __atomic_store_n(&size, threads, __ATOMIC_RELAXED); }

  void barrier() {
    if (size == 1) return;
    int now = generation.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived.store(0, std::memory_order_relaxed);
      generation.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; generation.load(std::memory_order_acquire) == now; spins++) {
      if (spins < 2000)
        _mm_pause();
      else
        sched_yield();
    }
  }
};

}  // namespace
