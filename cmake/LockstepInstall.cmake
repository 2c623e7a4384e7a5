# The package that find_package(Lockstep) finds: libraries, headers, and the lockstep program.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
set(libraries lockstep_core lockstep_kernels lockstep_control lockstep_comm lockstep_launch
              lockstep_plan lockstep_profile lockstep_record)
if(LOCKSTEP_WITH_TORCH)
  list(APPEND libraries lockstep)
endif()

install(TARGETS ${libraries} EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS lockstep_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/LockstepTorch.cmake DESTINATION ${package_dir})
