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
  # As TorchConfig.cmake and its version file would set them.
  get_filename_component(TORCH_INSTALL_PREFIX "${Torch_DIR}/../../.." ABSOLUTE)
  include("${Torch_DIR}/TorchConfigVersion.cmake")
  set(Torch_VERSION ${PACKAGE_VERSION})
  add_library(torch SHARED IMPORTED)
  set_target_properties(torch PROPERTIES
    IMPORTED_LOCATION "${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${TORCH_INSTALL_PREFIX}/include;${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${TORCH_INSTALL_PREFIX}/lib/libc10.so")
else()
  # Its warnings are about parts of LibTorch that nobody here asks for.
  set(lockstep_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch REQUIRED)
  set(CMAKE_MESSAGE_LOG_LEVEL "${lockstep_log_level}")
endif()
