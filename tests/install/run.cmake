# Installs Lockstep into an empty prefix, builds the outside project against it, and runs that on two
# ranks with the installed launcher.
# Takes: BUILD_DIR, SOURCE_DIR, WORK_DIR, BUILD_TYPE, CXX_COMPILER.

file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/a prefix")

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

step(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${prefix}")
step(${CMAKE_COMMAND} -S "${SOURCE_DIR}" -B "${WORK_DIR}/build" -G Ninja
     "-DCMAKE_PREFIX_PATH=${prefix}" -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
     -DCMAKE_CXX_COMPILER=${CXX_COMPILER})
step(${CMAKE_COMMAND} --build "${WORK_DIR}/build")
step("${prefix}/bin/lockstep" run -n 2 "${WORK_DIR}/build/outside")
if(NOT output MATCHES "2 ranks agree on 3")
  message(FATAL_ERROR "lockstep run -n 2 outside: got '${output}', expected '2 ranks agree on 3'")
endif()
file(REMOVE_RECURSE "${WORK_DIR}")
