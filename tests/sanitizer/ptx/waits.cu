// Kernels whose threads wait for each other; waits.ptx is this file, compiled as faults.cu is.
#include <cstdint>

#define FULL 0xffffffffu

// Every shuffle, vote and reduction of a warp: 16 results for each lane.
extern "C" __global__ void warp_operations(const int* in, int* out, int width) {
  int lane = threadIdx.x, value = in[lane], place = 0;
  int* mine = out + lane * 24;
  mine[place++] = __shfl_sync(FULL, value, lane * 7 + 3, width);
  mine[place++] = __shfl_up_sync(FULL, value, 3, width);
  mine[place++] = __shfl_down_sync(FULL, value, 5, width);
  mine[place++] = __shfl_xor_sync(FULL, value, 6, width);
  mine[place++] = __ballot_sync(FULL, value > 0);
  mine[place++] = __any_sync(FULL, value == 77);
  mine[place++] = __all_sync(FULL, value < 1000);
  mine[place++] = __match_any_sync(FULL, value & 3);
  int same;
  mine[place++] = __match_all_sync(FULL, 9, &same);
  mine[place++] = same;
  mine[place++] = __reduce_add_sync(FULL, value);
  mine[place++] = __reduce_min_sync(FULL, value);
  mine[place++] = __reduce_max_sync(FULL, value);
  mine[place++] = __reduce_and_sync(FULL, (unsigned)value);
  mine[place++] = __reduce_or_sync(FULL, (unsigned)value);
  mine[place++] = __reduce_xor_sync(FULL, (unsigned)value);
  mine[place++] = __activemask();
  if (lane % 2) mine[place++] = __shfl_xor_sync(0xaaaaaaaau, value, 2);
  else mine[place++] = __reduce_add_sync(0x55555555u, value);
  mine[place++] = __syncthreads_count(value > 0);
  mine[place++] = __syncthreads_and(value > 0);
  mine[place++] = __syncthreads_or(value > 40);
}

extern "C" __global__ void block_sum(const float* in, float* out) {
  __shared__ float parts[32];
  float value = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int d = 16; d; d /= 2) value += __shfl_xor_sync(FULL, value, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
    for (int d = 16; d; d /= 2) value += __shfl_xor_sync(FULL, value, d);
    if (threadIdx.x == 0) out[blockIdx.x] = value;
  }
}

// Named barriers: warp 0 makes, warp 1 takes.
extern "C" __global__ void named_barriers(int* out, int rounds) {
  __shared__ int slot[32];
  int lane = threadIdx.x % 32, total = 0;
  for (int k = 0; k < rounds; ++k) {
    if (threadIdx.x < 32) {
      if (k) asm volatile("bar.sync 2, 64;" ::: "memory");
      slot[lane] = k * 100 + lane;
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      total += slot[31 - lane];
      if (k + 1 < rounds) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
  }
  if (threadIdx.x >= 32) out[lane] = total;
}

extern "C" __global__ void copies_async(const int* in, int* out, int take) {
  __shared__ __align__(16) int kept[128];
  uint32_t to = (uint32_t)__cvta_generic_to_shared(kept + 4 * threadIdx.x);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(in + 4 * threadIdx.x), "r"(take));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;");
  __syncthreads();
  for (int k = 0; k < 4; ++k) out[threadIdx.x * 4 + k] = kept[127 - (threadIdx.x * 4 + k)];
}

__device__ void wait_for(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// Thread 0 copies in bulk, all wait for the bytes.
extern "C" __global__ void copies_in_bulk(const int* in, int* out, int rounds) {
  __shared__ __align__(128) int kept[256];
  __shared__ __align__(8) uint64_t barrier;
  uint32_t bar = (uint32_t)__cvta_generic_to_shared(&barrier);
  uint32_t to = (uint32_t)__cvta_generic_to_shared(kept);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
  __syncthreads();
  for (int k = 0; k < rounds; ++k) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(bar) : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(to),
          "l"(in + k * 256), "r"(bar) : "memory");
    }
    wait_for(bar, k & 1);
    for (int i = threadIdx.x; i < 256; i += blockDim.x) out[k * 256 + i] = kept[255 - i] + k;
    __syncthreads();
  }
}

// A consumer warp that spins on a flag which a later thread sets.
extern "C" __global__ void spins(int* out) {
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 63) flag = 42;
  if (threadIdx.x < 32) {
    while (flag == 0) {
    }
    out[threadIdx.x] = flag;
  }
}

extern "C" __global__ void spins_on_block(int* flag, int* out) {
  if (blockIdx.x == 0) {
    while (*(volatile int*)flag == 0) {
    }
    out[0] = 1;
  } else {
    *(volatile int*)flag = 1;
  }
}

// The last block adds up what all have written: blocks have an order by the counter.
extern "C" __global__ void last_block_sums(const int* in, int* parts, unsigned* counter, int* out) {
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = in[blockIdx.x];
    __threadfence();
    if (atomicAdd(counter, 1u) == gridDim.x - 1) {
      int total = 0;
      for (unsigned b = 0; b < gridDim.x; ++b) total += parts[b];
      out[0] = total;
    }
  }
}

extern "C" __global__ void atomics(int* out, unsigned* wrapped, float* sums, unsigned long long* wide) {
  atomicAdd(&out[0], (int)threadIdx.x);
  atomicSub(&out[1], 1);
  atomicMin(&out[2], -(int)threadIdx.x);
  atomicMax(&out[3], (int)threadIdx.x);
  atomicOr((unsigned*)&out[4], 1u << (threadIdx.x % 32));
  atomicXor((unsigned*)&out[5], threadIdx.x);
  atomicAnd((unsigned*)&out[6], ~(1u << (threadIdx.x % 7)));
  wrapped[threadIdx.x + 2] = atomicInc(&wrapped[0], 5);
  wrapped[threadIdx.x + 66] = atomicDec(&wrapped[1], 5);
  atomicAdd(&sums[0], 0.5f * threadIdx.x);
  atomicAdd(wide, 1ull << 33);
  atomicMax(wide + 1, (unsigned long long)threadIdx.x << 40);
  int seen = *(volatile int*)&out[7 + threadIdx.x % 2], old;
  do {
    old = seen;
    seen = atomicCAS(&out[7 + threadIdx.x % 2], old, old + 2);
  } while (seen != old);
}

extern "C" __global__ void jumps(const int* in, int* out) {
  int v = in[threadIdx.x], r;
  switch (v) {
    case 0: r = v * 3 + (int)threadIdx.x; break;
    case 1: r = __popc(threadIdx.x) ^ 5; break;
    case 2: r = -7 * (int)threadIdx.x; break;
    case 3: r = (int)threadIdx.x / 3; break;
    case 4: r = in[31 - threadIdx.x]; break;
    case 5: r = out[threadIdx.x] + 1; break;
    default: r = 99;
  }
  out[threadIdx.x] = r;
}
