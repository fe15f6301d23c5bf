// What extensions call of libc10_cuda, which a torch without CUDA lacks: one device, one stream.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

namespace c10::cuda {

static CUDAStream make_stream() {
  return CUDAStream(CUDAStream::UNCHECKED, Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)));
}
CUDAStream getCurrentCUDAStream(DeviceIndex) { return make_stream(); }
CUDAStream getDefaultCUDAStream(DeviceIndex) { return make_stream(); }
cudaStream_t CUDAStream::stream() const { return nullptr; }
DeviceIndex current_device() { return 0; }
DeviceIndex device_count() noexcept { return 1; }
cudaError_t GetDevice(DeviceIndex* device) { *device = 0; return cudaSuccess; }
cudaError_t SetDevice(DeviceIndex, const bool) { return cudaSuccess; }
cudaError_t MaybeSetDevice(DeviceIndex) { return cudaSuccess; }
DeviceIndex ExchangeDevice(DeviceIndex) { return 0; }
DeviceIndex MaybeExchangeDevice(DeviceIndex) { return 0; }
void c10_cuda_check_implementation(
    const int32_t error, const char* file, const char*, const uint32_t line, const bool) {
  TORCH_CHECK(error == 0, "CUDA error ", error, " at ", file, ":", line);
}

} // namespace c10::cuda
