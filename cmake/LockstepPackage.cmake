# Debian packages by CPack, one for each component: cd build && cpack
#
# LibTorch is no dependency: Debian has none of this version. LockstepConfig.cmake finds it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR Lockstep)
set(CPACK_PACKAGE_CONTACT "The Lockstep developers")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
# Not those of the umask of who makes the package.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                                WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL runtime dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME lockstep)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "Launcher of data-parallel training
 The program lockstep: it starts ranks, measures collectives, plans
 training steps and makes reports of runs.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME liblockstep-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(dependencies "lockstep (= ${PROJECT_VERSION})" libhwy-dev libsodium-dev pkg-config zlib1g-dev)
if(LOCKSTEP_IMAGES)
  list(APPEND dependencies libjpeg-dev libpng-dev)
endif()
if(LOCKSTEP_MPI AND MPI_CXX_INCLUDE_DIRS MATCHES openmpi)
  list(APPEND dependencies libopenmpi-dev)
elseif(LOCKSTEP_MPI AND MPI_CXX_INCLUDE_DIRS MATCHES mpich)
  list(APPEND dependencies libmpich-dev)
endif()
list(JOIN dependencies ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS "cmake, g++, libcli11-dev")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Data-parallel distributed training for C++ on LibTorch
 Libraries and headers of Lockstep, its CMake and pkg-config packages,
 documentation and examples. LibTorch ${Torch_VERSION} is needed besides; the
 CMake package looks for it in Torch_DIR, CMAKE_PREFIX_PATH and python3.")

include(CPack)
