# Makes the Debian packages and unpacks them into a folder. Compiles a program against it by pkg-config, and
# runs it with the launcher of the packages and by the script for SLURM.
# Takes: BUILD_DIR, SOURCE_DIR, LOCKSTEP_SOURCE, SCRIPT, WORK_DIR, CXX_COMPILER, VERSION.
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")

file(REMOVE_RECURSE "${WORK_DIR}")
set(root "${WORK_DIR}/root")
file(MAKE_DIRECTORY "${root}")
step(cpack --config "${BUILD_DIR}/CPackConfig.cmake" -G DEB -B "${WORK_DIR}/packages")
file(GLOB runtime "${WORK_DIR}/packages/lockstep_${VERSION}_*.deb")
file(GLOB dev "${WORK_DIR}/packages/liblockstep-dev_${VERSION}_*.deb")
if(NOT runtime OR NOT dev)
  message(FATAL_ERROR "got the packages '${runtime}' and '${dev}', expected one of each")
endif()

# All dependencies are packages that exist: the build needs the same ones, so they are installed here.
step(dpkg-deb --field "${runtime}" Depends)
expect("${output}" "libc6")
expect("${output}" "libhwy")
expect("${output}" "libsodium")
step(dpkg-deb --field "${dev}" Depends)
expect("${output}" "lockstep (= ${VERSION})")
string(REGEX REPLACE "(\\([^)]*\\)|[, \n])+" ";" dependencies "${output}")
list(REMOVE_ITEM dependencies lockstep "")
step(dpkg-query --show ${dependencies})
find_program(apt_get apt-get)
if(apt_get)
  step(${apt_get} install --simulate "${runtime}" "${dev}")
  expect("${output}" "Inst lockstep (${VERSION}")
  expect("${output}" "Inst liblockstep-dev (${VERSION}")
endif()

step(dpkg-deb --extract "${runtime}" "${root}")
foreach(file bin/lockstep share/doc/lockstep/LICENSE)
  if(NOT EXISTS "${root}/usr/${file}")
    message(FATAL_ERROR "the package lockstep has no /usr/${file}")
  endif()
endforeach()
if(EXISTS "${root}/usr/include" OR EXISTS "${root}/usr/lib")
  message(FATAL_ERROR "the package lockstep has headers or libraries, expected those in liblockstep-dev")
endif()

step(dpkg-deb --extract "${dev}" "${root}")
file(GLOB pkg_config_folder "${root}/usr/lib*/pkgconfig" "${root}/usr/lib/*/pkgconfig")
step(${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${pkg_config_folder}" pkg-config --cflags --libs lockstep)
separate_arguments(flags UNIX_COMMAND "${output}")
step(${CXX_COMPILER} -std=c++20 "${SOURCE_DIR}/outside.cpp" -o "${WORK_DIR}/outside" ${flags})
step("${root}/usr/bin/lockstep" run -n 2 "${WORK_DIR}/outside")
expect("${output}" "2 ranks agree on 3")
step(${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${pkg_config_folder}" pkg-config --cflags --libs lockstep-extras)
separate_arguments(flags UNIX_COMMAND "${output}")
step(${CXX_COMPILER} -std=c++20 "${SOURCE_DIR}/outside_extras.cpp" -o "${WORK_DIR}/outside_extras" ${flags})
step("${WORK_DIR}/outside_extras" "${LOCKSTEP_SOURCE}/examples/data/mnist")
expect("${output}" "digits")

# The script for SLURM: on one host it takes the launcher, on several hosts srun. A stand-in for srun starts
# two ranks with SLURM's variables.
file(WRITE "${WORK_DIR}/bin/srun" [=[
#!/usr/bin/env bash
while [[ $1 == -* ]]; do
  echo "srun got $1"
  shift
done
export SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1
SLURM_PROCID=0 "$@" &
SLURM_PROCID=1 "$@" || exit
wait -n
]=])
file(CHMOD "${WORK_DIR}/bin/srun" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
set(ENV{PATH} "${root}/usr/bin:${WORK_DIR}/bin:$ENV{PATH}")
set(ENV{SLURM_CPUS_PER_TASK} 1)
set(ENV{SLURM_NTASKS} 2)
foreach(hosts 1 2)
  set(ENV{SLURM_JOB_NUM_NODES} ${hosts})
  step(bash "${SCRIPT}" "${WORK_DIR}/outside")
  expect("${output}" "2 ranks agree on 3")
endforeach()
expect("${output}" "srun got --mpi=pmix")
execute_process(COMMAND bash "${SCRIPT}" RESULT_VARIABLE result ERROR_VARIABLE output)
expect("${output}" "no program given")
file(REMOVE_RECURSE "${WORK_DIR}")
