// Kernels with one planted fault each, marked on its line. faults.ptx is this file, compiled by
//   nvcc -std=c++20 -O3 -lineinfo -gencode=arch=compute_90a,code=compute_90a -ptx faults.cu
#include <cassert>
#include <cstdint>

struct Rows {
  float* out;
  const float* in;
  const int* index;
  int count;
};

extern "C" __global__ void read_row(Rows rows) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows.count) rows.out[i] =
      rows.in[rows.index[i]];  // FAULT read
}

extern "C" __global__ void write_row(Rows rows) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows.count)
    rows.out[rows.index[i]] = rows.in[i];  // FAULT write
}

extern "C" __global__ void update_row(Rows rows) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows.count)
    atomicAdd(&rows.out[rows.index[i]], rows.in[i]);  // FAULT update
}

__device__ __forceinline__ float load_inlined(const float* in, int64_t place) {
  return in[place];  // FAULT inlined
}

extern "C" __global__ void read_inlined(Rows rows) {
  rows.out[threadIdx.x] = load_inlined(rows.in, rows.index[threadIdx.x]);  // CALLER inlined
}

// Pointers that take a way: a select, shared memory, local memory, a table in global memory.
extern "C" __global__ void through_select(float* out, const float* a, const float* b, int64_t i) {
  const float* chosen = threadIdx.x % 2 ? a : b;
  out[threadIdx.x] = chosen[i + threadIdx.x];  // FAULT select
}

extern "C" __global__ void through_shared(float* out, const float* a, int64_t i) {
  __shared__ const float* kept[32];
  kept[threadIdx.x] = a;
  __syncthreads();
  out[threadIdx.x] = kept[31 - threadIdx.x][i + threadIdx.x];  // FAULT shared pointer
}

extern "C" __global__ void through_local(float* out, const float* a, const float* b, int64_t i, const int* which) {
  const float* kept[4] = {a, b, b, a};
  for (int k = 0; k < 4; ++k) kept[which[k]] = k % 2 ? b : a;
  out[threadIdx.x] = kept[which[threadIdx.x % 4]][i + threadIdx.x];  // FAULT local pointer
}

extern "C" __global__ void through_table(float* out, const float* const* table, int64_t i) {
  out[threadIdx.x] = table[threadIdx.x % 2][i + threadIdx.x];  // FAULT table pointer
}

// Shared and local memory
extern "C" __global__ void shared_bounds(float* out, int i) {
  __shared__ float first[32];
  __shared__ float second[32];
  first[threadIdx.x] = threadIdx.x;
  second[threadIdx.x] = 100.0f + threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = first[threadIdx.x + i] + second[threadIdx.x];  // FAULT shared bounds
}

extern "C" __global__ void dynamic_bounds(float* out, int i) {
  extern __shared__ float buffer[];
  buffer[threadIdx.x + i] = threadIdx.x;  // FAULT dynamic bounds
  __syncthreads();
  out[threadIdx.x] = buffer[threadIdx.x];
}

extern "C" __global__ void local_bounds(float* out, const int* index) {
  float kept[8] = {};
  for (int k = 0; k < 8; ++k) kept[index[k]] += k;  // FAULT local bounds
  float total = 0;
  for (int k = 0; k < 8; ++k) total += kept[index[8 + k]];
  out[threadIdx.x] = total;
}

// Integers on their way into an address
extern "C" __global__ void overflow_product(float* out, int row, int stride) {
  int place = (row + blockIdx.x) * stride;
  out[place + threadIdx.x] = 1;  // FAULT signed product
}

extern "C" __global__ void overflow_unsigned(float* out, unsigned row, unsigned stride) {
  unsigned place = (row + blockIdx.x) * stride;
  out[place + threadIdx.x] = 1;  // FAULT unsigned product
}

extern "C" __global__ void overflow_shift(float* out, unsigned row) {
  unsigned place = row << 20;  // FAULT shift
  out[place + threadIdx.x] = 1;
}

extern "C" __global__ void overflow_narrowing(float* out, const int64_t* index) {
  int place = (int)index[threadIdx.x];
  out[place] = 1;  // FAULT narrowing
}

extern "C" __global__ void wraps_and_returns(float* out, unsigned a, unsigned b) {
  unsigned place = a - b;  // negative for a while
  out[(place + threadIdx.x) + b] = 1;
}

// Uninitialized memory
extern "C" __global__ void read_shared_uninitialized(float* out, int n) {
  __shared__ float kept[64];
  if (threadIdx.x < n) kept[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = kept[threadIdx.x];  // FAULT shared uninitialized
}

// Races
template <bool kSync>
__device__ void exchange(float* out) {
  __shared__ float kept[64];
  kept[threadIdx.x] = threadIdx.x + 1.0f;  // FAULT write after other's read
  if (kSync) __syncthreads();
  out[threadIdx.x] = kept[threadIdx.x ^ 33];
}
extern "C" __global__ void exchange_synchronized(float* out) { exchange<true>(out); }
extern "C" __global__ void exchange_unsynchronized(float* out) { exchange<false>(out); }

template <bool kSync>
__device__ void reuse(float* out, int rounds) {
  __shared__ float kept[64];
  float total = 0;
  for (int k = 0; k < rounds; ++k) {
    kept[threadIdx.x] = threadIdx.x + k;
    __syncthreads();
    total += kept[63 - threadIdx.x];  // FAULT read of the next round
    if (kSync) __syncthreads();
  }
  out[threadIdx.x] = total;
}
extern "C" __global__ void reuse_synchronized(float* out, int rounds) { reuse<true>(out, rounds); }
extern "C" __global__ void reuse_unsynchronized(float* out, int rounds) { reuse<false>(out, rounds); }

template <bool kSync>
__device__ void warp_exchange(float* out) {
  __shared__ float kept[64];
  kept[threadIdx.x] = threadIdx.x + 1.0f;
  if (kSync) __syncwarp();
  out[threadIdx.x] = threadIdx.x % 32 ? kept[threadIdx.x - 1] : 0;  // FAULT warp race
}
extern "C" __global__ void warp_exchange_synchronized(float* out) { warp_exchange<true>(out); }
extern "C" __global__ void warp_exchange_unsynchronized(float* out) { warp_exchange<false>(out); }

extern "C" __global__ void threads_write_one(float* out, int shift) {
  out[threadIdx.x >> shift] = threadIdx.x + 1.0f;  // FAULT threads write
}

extern "C" __global__ void threads_write_same(float* out) { out[threadIdx.x / 2] = 5; }

extern "C" __global__ void store_and_update(float* out) {
  if (threadIdx.x == 0) out[0] = 3.0f;
  else atomicAdd(out, 1.0f);  // FAULT store and update
}

// Barriers
extern "C" __global__ void divergent_barrier(float* out, int half) {
  __shared__ float kept[32];
  kept[threadIdx.x] = threadIdx.x;
  if (threadIdx.x < half) {
    __syncthreads();
    out[threadIdx.x] = kept[31 - threadIdx.x];
  } else {
    __syncthreads();  // FAULT divergent
    out[threadIdx.x] = kept[31 - threadIdx.x] + 1;
  }
}

extern "C" __global__ void waits_in_vain(float* out) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");  // FAULT in vain
  else asm volatile("bar.sync 2, 64;" ::: "memory");
  out[threadIdx.x] = 1;
}

// Alignment, assertions, launches
extern "C" __global__ void misaligned(float4* out, const float* in, int64_t shift) {
  out[threadIdx.x] =
      *reinterpret_cast<const float4*>(in + shift + 4 * threadIdx.x);  // FAULT misaligned
}

extern "C" __global__ void fails_assertion(const int* index, int limit) {
  assert(index[threadIdx.x] < limit);  // FAULT assertion
}

extern "C" __global__ void stops(const int* index) {
  if (index[threadIdx.x] < 0) __trap();  // FAULT trap
}

extern "C" __global__ void __launch_bounds__(64) at_most_64(float* out) { out[threadIdx.x] = 1; }

extern "C" __global__ void uses_shared(float* out) {
  __shared__ float kept[8192];
  extern __shared__ float more[];
  kept[threadIdx.x] = 1;
  more[threadIdx.x] = 2;
  __syncthreads();
  out[threadIdx.x] = kept[threadIdx.x ^ 1] + more[threadIdx.x ^ 1];
}
