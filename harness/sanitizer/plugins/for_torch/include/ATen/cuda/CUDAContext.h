#pragma once // torch's own includes headers of cuBLAS, cuSPARSE and cuSOLVER
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
namespace at::cuda {
using namespace c10::cuda;
}
