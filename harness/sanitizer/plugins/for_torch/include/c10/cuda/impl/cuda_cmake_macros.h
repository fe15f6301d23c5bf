#pragma once // a torch without CUDA has the headers of c10/cuda, but for this one
#define C10_CUDA_BUILD_SHARED_LIBS
