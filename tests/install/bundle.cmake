# Unpacks the archive of the target `bundle` in another folder: its programs start there, and name no folder of this build.
# Takes: BUILD_DIR, WORK_DIR, TORCH_DIR.
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")

file(REMOVE_RECURSE "${WORK_DIR}")
step(${CMAKE_COMMAND} --build "${BUILD_DIR}" --target bundle)
file(ARCHIVE_EXTRACT INPUT "${BUILD_DIR}/lockstep-gpu.tar.xz" DESTINATION "${WORK_DIR}")
set(build "${WORK_DIR}/lockstep-gpu/build/gpu")
step("${build}/bin/lockstep" doctor)
expect("${output}" "${build}/torch/lib/libtorch_cpu.so, which is not on this machine")
file(CREATE_LINK "${TORCH_DIR}/../../.." "${build}/torch" SYMBOLIC)
foreach(program lockstep test_device test_parity bench_train_step bench_device mnist_cnn)
  step(ldd "${build}/bin/${program}")
  if(output MATCHES "${BUILD_DIR}/(lib|src)" OR output MATCHES "liblockstep[a-z_]*.so => not found")
    message(FATAL_ERROR "got a library of this build, expected those of the archive:\n${output}")
  endif()
  step("${build}/bin/${program}" --help)
endforeach()
file(REMOVE_RECURSE "${WORK_DIR}")
