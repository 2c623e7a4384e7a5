# What `cmake --install` installs, in two components.
#   runtime: the program lockstep, the licence
#   dev:     libraries, headers, the packages that find_package and pkg-config find, docs, examples
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/lockstep)
set(libraries lockstep_core lockstep_kernels lockstep_control lockstep_comm lockstep_join
              lockstep_profile lockstep_record lockstep_averaging)
if(LOCKSTEP_WITH_TORCH)
  list(APPEND libraries lockstep lockstep_sync lockstep_extras)
endif()

install(TARGETS lockstep_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc_dir} COMPONENT runtime)

install(TARGETS ${libraries} EXPORT LockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
# Programs in C find lockstep_c.h and link liblockstep_c.so, without LibTorch.
install(TARGETS lockstep_c LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
install(FILES ${PROJECT_SOURCE_DIR}/include/lockstep_c.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT dev)
if(LOCKSTEP_WITH_TORCH)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/extras/include/lockstep
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
endif()
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${package_dir} COMPONENT dev)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/LockstepTorch.cmake
        DESTINATION ${package_dir} COMPONENT dev)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${doc_dir}
        COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples DESTINATION ${doc_dir}
        COMPONENT dev)

if(LOCKSTEP_WITH_TORCH)
  # Both find their prefix from their own place, so an installation may be moved. A program links the
  # shared libraries of the static ones itself.
  file(RELATIVE_PATH LOCKSTEP_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" /)
  set(LOCKSTEP_PC_IMAGES)
  if(LOCKSTEP_IMAGES)
    set(LOCKSTEP_PC_IMAGES " -ljpeg -lpng")
  endif()
  set(LOCKSTEP_PC_LIBS)
  if(EXISTS "${TORCH_INSTALL_PREFIX}/lib/libtorch_cuda.so")
    string(APPEND LOCKSTEP_PC_LIBS " -Wl,--push-state,--no-as-needed,-ltorch_cuda,--pop-state")
  endif()
  if(LOCKSTEP_MPI)
    list(JOIN MPI_CXX_LIBRARIES " " mpi_libraries)
    string(APPEND LOCKSTEP_PC_LIBS " ${mpi_libraries}")
  endif()
  foreach(name lockstep lockstep-extras)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
            COMPONENT dev)
  endforeach()
endif()
