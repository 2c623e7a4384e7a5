# Finds MPI as the target MPI::MPI_CXX and sets LOCKSTEP_MPI, unless LOCKSTEP_WITH_MPI is OFF.
# MPI_CXX_COMPILER and MPIEXEC_EXECUTABLE choose one of several; they belong together.

set(LOCKSTEP_MPI OFF)
if(LOCKSTEP_WITH_MPI STREQUAL AUTO)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_COMPILER AND NOT MPI_CXX_FOUND)
    message(WARNING "Lockstep is built without MPI: ${MPI_CXX_COMPILER} is there, but CMake could not link a program with it. "
                    "Configure an empty folder anew; -DLOCKSTEP_WITH_MPI=ON says why it fails, OFF is silent.")
  endif()
elseif(LOCKSTEP_WITH_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
if(LOCKSTEP_WITH_MPI AND MPI_CXX_FOUND)
  set(LOCKSTEP_MPI ON)
endif()

function(lockstep_link_mpi target)
  target_link_libraries(${target} PRIVATE MPI::MPI_CXX)
  # MPI's C++ interface is gone from the standard, and its headers warn.
  target_compile_definitions(${target} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endfunction()
