// Asynchronous copies into shared memory, with and without what a read of them needs.
// copies.ptx is this file, compiled as faults.cu is.
#include <cstdint>

__device__ __forceinline__ void copy4(int* to, const int* from) {
  uint32_t place = (uint32_t)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place), "l"(from) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

extern "C" __global__ void own_read_waits(const int* in, int* out) {
  __shared__ int tile[32];
  copy4(&tile[threadIdx.x], &in[threadIdx.x]);
  commit();
  wait<0>();
  out[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void wait_is_missing(const int* in, int* out) {
  __shared__ int tile[32];
  copy4(&tile[threadIdx.x], &in[threadIdx.x]);
  commit();
  __syncthreads();
  out[threadIdx.x] = tile[31 - threadIdx.x];  // FAULT wait
}

extern "C" __global__ void commit_is_missing(const int* in, int* out) {
  __shared__ int tile[32];
  copy4(&tile[threadIdx.x], &in[threadIdx.x]);
  wait<0>();
  __syncthreads();
  out[threadIdx.x] = tile[31 - threadIdx.x];  // FAULT commit
}

extern "C" __global__ void barrier_is_missing(const int* in, int* out) {
  __shared__ int tile[64];
  copy4(&tile[threadIdx.x], &in[threadIdx.x]);
  commit();
  __syncthreads();
  wait<0>();
  if (threadIdx.x >= 32) out[threadIdx.x] = tile[threadIdx.x - 32];  // FAULT barrier
}

// Two stages: a stage is read after the wait that leaves the next one in progress.
template <int LEFT>
__device__ __forceinline__ void two_stages(const int* in, int* out, int rounds) {
  __shared__ int tile[2][64];
  copy4(&tile[0][threadIdx.x], &in[threadIdx.x]);
  commit();
  for (int k = 0; k < rounds; ++k) {
    if (k + 1 < rounds) copy4(&tile[(k + 1) % 2][threadIdx.x], &in[(k + 1) * 64 + threadIdx.x]);
    commit();
    wait<LEFT>();
    __syncthreads();
    out[k * 64 + threadIdx.x] = tile[k % 2][63 - threadIdx.x];  // FAULT stage
    __syncthreads();
  }
}
extern "C" __global__ void stages(const int* in, int* out, int rounds) { two_stages<1>(in, out, rounds); }
extern "C" __global__ void waits_too_little(const int* in, int* out, int rounds) { two_stages<2>(in, out, rounds); }

// All copies so far are what an mbarrier waits for.
extern "C" __global__ void waits_by_mbarrier(const int* in, int* out) {
  __shared__ int tile[64];
  __shared__ __align__(8) uint64_t barrier;
  uint32_t bar = (uint32_t)__cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 64;" ::"r"(bar));
  __syncthreads();
  copy4(&tile[threadIdx.x], &in[threadIdx.x]);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(bar) : "memory");
  out[threadIdx.x] = tile[63 - threadIdx.x];
}
