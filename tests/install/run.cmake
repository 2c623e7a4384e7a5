# Installs Lockstep into an empty prefix, builds the outside project against it, and runs that on two
# ranks with the installed launcher.
# Takes: BUILD_DIR, SOURCE_DIR, LOCKSTEP_SOURCE, WORK_DIR, BUILD_TYPE, CXX_COMPILER.
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")

file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/a prefix")
set(configure ${CMAKE_COMMAND} -S "${SOURCE_DIR}" -G Ninja "-DCMAKE_PREFIX_PATH=${prefix}"
              -DCMAKE_BUILD_TYPE=${BUILD_TYPE} "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}")

step(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${prefix}")
step(${configure} -B "${WORK_DIR}/build")
step(${CMAKE_COMMAND} --build "${WORK_DIR}/build")
step("${prefix}/bin/lockstep" run -n 2 "${WORK_DIR}/build/outside")
expect("${output}" "2 ranks agree on 3")
step("${WORK_DIR}/build/outside_extras" "${LOCKSTEP_SOURCE}/examples/data/mnist")
expect("${output}" "digits")

# Another LibTorch than the one that Lockstep was built with.
set(other "${WORK_DIR}/torch/share/cmake/Torch")
file(WRITE "${other}/TorchConfig.cmake" "")
file(WRITE "${other}/TorchConfigVersion.cmake" "set(PACKAGE_VERSION \"2.1.0\")\n")
execute_process(COMMAND ${configure} -B "${WORK_DIR}/refused" "-DTorch_DIR=${other}"
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "got a configured project with LibTorch 2.1.0, expected an error:\n${output}")
endif()
string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake breaks lines
expect("${output}" "Lockstep: got LibTorch 2.1.0")
expect("${output}" "expected ${TORCH_VERSION}, the version that this Lockstep was built with. Set Torch_DIR")

# A LibTorch with CUDA, where CUDA's compiler is installed: its own package would look for all of CUDA's toolkit.
# A project that has the toolkit finds that package afterwards. It refuses a target torch that it has not made.
file(WRITE "${other}/TorchConfig.cmake" [=[
if(NOT TARGET Lockstep::lockstep OR TARGET torch)
  message(FATAL_ERROR "got TorchConfig.cmake")
endif()
]=])
file(WRITE "${other}/TorchConfigVersion.cmake" "set(PACKAGE_VERSION \"${TORCH_VERSION}\")\n")
file(WRITE "${WORK_DIR}/torch/share/cmake/Caffe2/Caffe2Config.cmake" "set(CAFFE2_USE_CUDA 1)\n")
file(MAKE_DIRECTORY "${WORK_DIR}/torch/include/torch/csrc/api/include")
file(WRITE "${WORK_DIR}/cuda/bin/nvcc" "")
file(CHMOD "${WORK_DIR}/cuda/bin/nvcc" PERMISSIONS OWNER_READ OWNER_EXECUTE)
step(${CMAKE_COMMAND} -E env "CUDA_HOME=${WORK_DIR}/cuda" ${configure} -B "${WORK_DIR}/cuda/build" "-DTorch_DIR=${other}" -DFIND_TORCH=ON)
file(REMOVE_RECURSE "${WORK_DIR}")
