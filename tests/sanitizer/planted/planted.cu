// The kernels of fault_table.py for CUDA. planted.ptx is this file, compiled by
//   nvcc -std=c++20 -O3 -lineinfo -gencode=arch=compute_90a,code=compute_90a -ptx planted.cu
#include <cassert>
#include <cstdint>

extern "C" __global__ void read_row(float* out, const float* values, const int64_t* index) {
  int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = values[index[i]];  // FAULT
}

extern "C" __global__ void write_row(float* out, const float* values, const int64_t* index) {
  int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[index[i]] = values[i];  // FAULT
}

extern "C" __global__ void update_row(float* out, const float* values, const int64_t* index) {
  int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(out + index[i], values[i]);  // FAULT
}

extern "C" __global__ void at_product(float* out, int64_t row, int64_t stride) {
  int place = (int)row * (int)stride;
  out[place] = 1;  // FAULT
}

extern "C" __global__ void write_one(float* out, int64_t step) {
  if (threadIdx.x == 0) out[3] = step * (int64_t)blockIdx.x + 1;  // FAULT
}

extern "C" __global__ void write_then_read(float* out, float* shared) {
  if (threadIdx.x > 0) return;
  if (blockIdx.x == 0) shared[2] = 7;
  else out[blockIdx.x] = shared[2];  // FAULT
}

extern "C" __global__ void read_then_write(float* out, float* shared) {
  if (threadIdx.x > 0) return;
  if (blockIdx.x == 0) out[blockIdx.x] = shared[2];
  else shared[2] = 7;  // FAULT
}

extern "C" __global__ void store_and_update(float* out) {
  if (threadIdx.x > 0) return;
  if (blockIdx.x == 0) out[1] = 5;
  else atomicAdd(out + 1, 1.0f);  // FAULT
}

extern "C" __global__ void update_and_store(float* out) {
  if (threadIdx.x > 0) return;
  if (blockIdx.x == 0) atomicAdd(out + 1, 1.0f);
  else out[1] = 5;  // FAULT
}

extern "C" __global__ void asserting(float* out, int64_t count) {
  assert(count < 3);  // FAULT
  out[0] = count;
}
