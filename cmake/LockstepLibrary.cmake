# What every Lockstep target shares: the public headers and the warnings.

function(lockstep_configure target)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF UNITY_BUILD OFF)
  # Sums must not depend on whether the compiler fuses a multiplication with an addition.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -ffp-contract=off
                                           $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
  # Clang warns of std::stable_sort() of GCC 12's library.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
endfunction()

# The target includes internal headers, as "comm/operation.h". Examples and installed programs do
# not: they see include/lockstep only.
function(lockstep_internal target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
endfunction()

# One static library of all .cpp files of the named folders.
function(lockstep_library target)
  cmake_parse_arguments(arg "" "" "FOLDERS;LINK;LINK_PRIVATE" ${ARGN})
  set(sources)
  foreach(folder IN LISTS arg_FOLDERS)
    file(GLOB found CONFIGURE_DEPENDS ${folder}/*.cpp)
    list(APPEND sources ${found})
  endforeach()
  add_library(${target} STATIC ${sources})
  add_library(Lockstep::${target} ALIAS ${target})
  target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE ${arg_LINK_PRIVATE})
  lockstep_configure(${target})
  lockstep_internal(${target})
  lockstep_batch(${target})
endfunction()

# Headers such as LibTorch's, GoogleTest's and CLI11's cost a file up to ten seconds, whatever it does
# with them, and those of the standard library two: a target's files are compiled as one, or as several
# batches of the same size.
option(LOCKSTEP_BATCH "Compile several files as one where their headers cost more than they do" ON)
set(LOCKSTEP_BATCH_SIZE 26 CACHE STRING "The most files that are compiled as one")
set(LOCKSTEP_UNBATCHED "" CACHE STRING "Targets that are compiled file by file all the same")
function(lockstep_batch target)
  if(LOCKSTEP_BATCH AND NOT target IN_LIST LOCKSTEP_UNBATCHED)
    set(size ${LOCKSTEP_BATCH_SIZE})
    get_target_property(sources ${target} SOURCES)
    list(LENGTH sources files)
    if(files GREATER size)
      math(EXPR batches "(${files} + ${size} - 1) / ${size}")
      math(EXPR size "(${files} + ${batches} - 1) / ${batches}")
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
  endif()
endfunction()

# A program without LibTorch. Its hot loops are in the libraries. -O3 takes 1.5 to 2 times as long as -O1
# for the headers of GoogleTest, CLI11 and nlohmann_json, and -O1 1.3 times as long as -O0.
function(lockstep_program target)
  lockstep_configure(${target})
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -O0 -fno-sanitize=undefined)
  else()
    target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  endif()
endfunction()

# A program of LibTorch: for its templates the same holds. GCC refuses the precompiled header with -O0, with
# another level than -Os where the library has that, and from GCC 13 on with -O1. GCC 14 warns of functions
# of LibTorch that it inlines.
set(lockstep_torch_level -O1)
set(lockstep_torch_warnings)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  set(lockstep_torch_level -O2)
  set(lockstep_torch_warnings -Wno-array-bounds -Wno-maybe-uninitialized -Wno-stringop-overflow)
endif()
function(lockstep_torch_program target)
  lockstep_configure(${target})
  target_precompile_headers(${target} REUSE_FROM lockstep)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:Release,RelWithDebInfo>:${lockstep_torch_level}>"
                                           "$<$<NOT:$<CONFIG:Debug>>:${lockstep_torch_warnings}>")
endfunction()
