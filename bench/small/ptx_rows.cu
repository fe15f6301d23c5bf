// Kernels for bench/ptx_executor.py; ptx_rows.ptx is this file, compiled by
//   nvcc -std=c++20 -O3 -lineinfo --use_fast_math -gencode=arch=compute_90a,code=compute_90a -ptx ptx_rows.cu
#include <cstdint>

extern "C" __global__ void copy_rows(const float4* in, float4* out, const int64_t* rows, int width) {
  const float4* from = in + rows[blockIdx.x] * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) out[blockIdx.x * (int64_t)width + i] = from[i];
}

extern "C" __global__ void normalize_rows(const float* in, float* out, int width, float eps) {
  __shared__ float parts[32];
  const float* row = in + blockIdx.x * (int64_t)width;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i] * row[i];
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) sum += parts[w];
  float scale = rsqrtf(sum / width + eps);
  for (int i = threadIdx.x; i < width; i += blockDim.x) out[blockIdx.x * (int64_t)width + i] = row[i] * scale;
}

extern "C" __global__ void count_digits(const unsigned* in, unsigned* out, int width) {
  __shared__ unsigned counts[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    atomicAdd(&counts[in[blockIdx.x * (int64_t)width + i] >> 24], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) out[blockIdx.x * 256 + i] = counts[i];
}

extern "C" __global__ void evaluate(const float* in, float* out, int rounds) {
  float x = in[blockIdx.x * blockDim.x + threadIdx.x], y = 0;
  for (int k = 0; k < rounds; ++k) y = y * x + 0.5f - y * 0.25f;
  out[blockIdx.x * blockDim.x + threadIdx.x] = y;
}
