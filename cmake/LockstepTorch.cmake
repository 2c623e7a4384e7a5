# Finds LibTorch as the target torch. Included by the build and by the installed package.
#
# TorchConfig.cmake stops without CUDA's compiler when its LibTorch has CUDA, as the usual wheel has.
# Lockstep compiles no CUDA code: there, the two libraries that it links are named by hand.

set(lockstep_torch_cuda)
if(EXISTS "${Torch_DIR}/../Caffe2/Caffe2Config.cmake")
  file(STRINGS "${Torch_DIR}/../Caffe2/Caffe2Config.cmake" lockstep_torch_cuda
       REGEX "set\\(CAFFE2_USE_CUDA (1|ON)\\)")
endif()
find_program(LOCKSTEP_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)

if(TARGET torch)
  # Found before, by the project that includes this.
elseif(lockstep_torch_cuda AND NOT LOCKSTEP_NVCC)
  get_filename_component(lockstep_torch_root "${Torch_DIR}/../../.." ABSOLUTE)
  add_library(torch SHARED IMPORTED)
  set_target_properties(torch PROPERTIES
    IMPORTED_LOCATION "${lockstep_torch_root}/lib/libtorch_cpu.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${lockstep_torch_root}/include;${lockstep_torch_root}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${lockstep_torch_root}/lib/libc10.so")
else()
  # Its warnings are about parts of LibTorch that nobody here asks for.
  set(lockstep_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch REQUIRED)
  set(CMAKE_MESSAGE_LOG_LEVEL "${lockstep_log_level}")
endif()
