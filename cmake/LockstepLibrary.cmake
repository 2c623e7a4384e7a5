# What every Lockstep target shares: include root and warnings.

function(lockstep_configure target)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow
                                           $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
endfunction()

# One static library for a room of the house: all .cpp files of the named folders.
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
endfunction()
