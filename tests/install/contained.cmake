# Configures a project that contains Lockstep, by add_subdirectory and by FetchContent, generates the whole
# of it and builds one small library. What the linker gets is resolved when CMake generates.
# Takes: LOCKSTEP_SOURCE, SOURCE_DIR, WORK_DIR, CXX_COMPILER, CXX_LAUNCHER, TORCH_DIR.
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")

if(NOT CXX_LAUNCHER)
  set(CXX_LAUNCHER "")
endif()
file(REMOVE_RECURSE "${WORK_DIR}")
foreach(fetch OFF ON)
  set(build "${WORK_DIR}/fetch-${fetch}")
  step(${CMAKE_COMMAND} -S "${SOURCE_DIR}/contained" -B "${build}" -G Ninja -DFETCH=${fetch}
       "-DLOCKSTEP_SOURCE=${LOCKSTEP_SOURCE}" "-DTorch_DIR=${TORCH_DIR}"
       "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER}"
       -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
  file(READ "${build}/compile_commands.json" commands)
  expect("${commands}" "outside.cpp")
  expect("${commands}" "-O3 -DNDEBUG -fPIC")  # also where the project has no build type
  string(FIND "${commands}" "-Werror" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${build}: got -Werror, expected warnings that are no errors")
  endif()
  step(${CMAKE_COMMAND} --install "${build}" --prefix "${build}/prefix")
  file(GLOB installed "${build}/prefix/*")
  if(installed)
    message(FATAL_ERROR "${build}: installs ${installed}, expected nothing of Lockstep")
  endif()
endforeach()
step(${CMAKE_COMMAND} --build "${WORK_DIR}/fetch-ON" --target lockstep_core)

# Lockstep as the top-level project, built for size. GCC refuses a precompiled header of another level. Hidden
# symbols leave liblockstep_c.so without exports.
step(${CMAKE_COMMAND} -S "${LOCKSTEP_SOURCE}" -B "${WORK_DIR}/size" -G Ninja -DCMAKE_BUILD_TYPE=MinSizeRel
     -DCMAKE_CXX_VISIBILITY_PRESET=hidden -DLOCKSTEP_BUILD_TESTS=OFF "-DTorch_DIR=${TORCH_DIR}"
     "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}")
file(READ "${WORK_DIR}/size/compile_commands.json" commands)
string(REGEX MATCH "[^\n]*bench_train_step\\.dir[^\n]*" command "${commands}")
expect("${command}" "-Os -DNDEBUG")
if(command MATCHES " -O[0-3] ")
  message(FATAL_ERROR "got:\n${command}\nexpected no other level than -Os")
endif()
string(REGEX MATCH "[^\n]*lockstep_c\\.dir[^\n]*" command "${commands}")
expect("${command}" "-fvisibility=default")
file(REMOVE_RECURSE "${WORK_DIR}")
