# Finds LibTorch as the target Lockstep::torch, and sets Torch_VERSION and TORCH_INSTALL_PREFIX. Included
# by the build and by the installed package. Where LibTorch cannot be used, sets LOCKSTEP_TORCH_PROBLEM to
# the reason. LOCKSTEP_TORCH_EXPECTED is the version that is required, if there is one.
#
# The containing project may have found LibTorch already. Else LibTorch is that of Torch_DIR, of
# CMAKE_PREFIX_PATH, or of python3, in this order.

set(LOCKSTEP_TORCH_PROBLEM)

if(NOT Torch_DIR)
  find_path(Torch_DIR TorchConfig.cmake HINTS ENV Torch_DIR ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
            PATH_SUFFIXES share/cmake/Torch Torch DOC "The folder of TorchConfig.cmake")
endif()
if(NOT Torch_DIR AND NOT TARGET torch)
  find_program(LOCKSTEP_PYTHON NAMES python3 python)
  if(LOCKSTEP_PYTHON)
    # The package is located, not imported: importing it takes more than a second.
    execute_process(
      COMMAND ${LOCKSTEP_PYTHON} -c "from importlib.util import find_spec
from os.path import dirname
spec = find_spec('torch')
print(dirname(spec.origin) if spec and spec.origin else '')"
      OUTPUT_VARIABLE lockstep_torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(EXISTS "${lockstep_torch_folder}/share/cmake/Torch/TorchConfig.cmake")
      set(Torch_DIR "${lockstep_torch_folder}/share/cmake/Torch"
          CACHE PATH "The folder of TorchConfig.cmake" FORCE)
    endif()
  endif()
endif()

if(EXISTS "${Torch_DIR}/TorchConfigVersion.cmake")
  file(STRINGS "${Torch_DIR}/TorchConfigVersion.cmake" Torch_VERSION REGEX "^set\\(PACKAGE_VERSION \"")
  string(REGEX REPLACE ".*\"([0-9.]+).*" "\\1" Torch_VERSION "${Torch_VERSION}")
  get_filename_component(TORCH_INSTALL_PREFIX "${Torch_DIR}/../../.." ABSOLUTE)
endif()
# LibTorch's C++ interface differs between versions, so objects of two versions must not be linked.
if(LOCKSTEP_TORCH_EXPECTED AND Torch_VERSION AND NOT Torch_VERSION VERSION_EQUAL LOCKSTEP_TORCH_EXPECTED)
  set(LOCKSTEP_TORCH_PROBLEM
      "got LibTorch ${Torch_VERSION} (${Torch_DIR}), expected ${LOCKSTEP_TORCH_EXPECTED}, the version \
that this Lockstep was built with. Set Torch_DIR to the folder of a LibTorch ${LOCKSTEP_TORCH_EXPECTED} \
that has TorchConfig.cmake, or build Lockstep with LibTorch ${Torch_VERSION}.")
  return()
endif()

# TorchConfig.cmake looks for all of CUDA's toolkit when its LibTorch has CUDA, as the usual wheel has.
# Lockstep compiles no CUDA code: then, the libraries that it links are named by hand. A program calls
# no function of libtorch_cuda, which registers its operators when it is loaded.
set(lockstep_torch_cuda)
if(EXISTS "${Torch_DIR}/../Caffe2/Caffe2Config.cmake")
  file(STRINGS "${Torch_DIR}/../Caffe2/Caffe2Config.cmake" lockstep_torch_cuda
       REGEX "set\\(CAFFE2_USE_CUDA (1|ON)\\)")
endif()

# LibTorch's own package refuses to be found beside a target torch of somebody else's: this one has
# another name.
if(TARGET Lockstep::torch)
  return()
elseif(lockstep_torch_cuda AND NOT TARGET torch)
  add_library(Lockstep::torch SHARED IMPORTED)
  set_target_properties(Lockstep::torch PROPERTIES
    IMPORTED_LOCATION "${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${TORCH_INSTALL_PREFIX}/include;${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES
      "${TORCH_INSTALL_PREFIX}/lib/libc10.so;-Wl,--push-state,--no-as-needed,${TORCH_INSTALL_PREFIX}/lib/libtorch_cuda.so,--pop-state")
  return()
endif()
if(NOT TARGET torch)
  # Its warnings are about parts of LibTorch that nobody here asks for.
  set(lockstep_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch QUIET)
  set(CMAKE_MESSAGE_LOG_LEVEL "${lockstep_log_level}")
  if(NOT Torch_FOUND)
    string(JOIN " " lockstep_expected LibTorch ${LOCKSTEP_TORCH_EXPECTED})
    set(LOCKSTEP_TORCH_PROBLEM
        "got no LibTorch from Torch_DIR, CMAKE_PREFIX_PATH or python3, expected ${lockstep_expected}. \
Install it as Python's package torch, or set Torch_DIR to the folder that has TorchConfig.cmake. tools/bootstrap \
of Lockstep's sources installs it and prints that folder.")
    return()
  endif()
endif()
add_library(Lockstep::torch INTERFACE IMPORTED)
set_target_properties(Lockstep::torch PROPERTIES INTERFACE_LINK_LIBRARIES torch)
