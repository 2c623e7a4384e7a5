# Bounds the number of compilers that Ninja runs at a time by the machine's memory and processors.
# LibTorch's headers take about 2.5 GB a compiler, and a compiler that gets no memory is killed without
# an error message. A container's limit counts where it is smaller. Ninja's own number, the processors
# and two, takes longer: docs/design/testing.md. LOCKSTEP_COMPILE_JOBS sets another number.
set(LOCKSTEP_COMPILE_JOBS "" CACHE STRING
    "Most compilers at a time, with Ninja (default: one for each processor and 2.5 GB of memory)")
set(lockstep_jobs "${LOCKSTEP_COMPILE_JOBS}")
if(NOT lockstep_jobs)
  cmake_host_system_information(RESULT lockstep_memory QUERY TOTAL_PHYSICAL_MEMORY)  # MiB
  foreach(limit /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes)
    if(EXISTS ${limit})
      file(READ ${limit} lockstep_limit)
      string(STRIP "${lockstep_limit}" lockstep_limit)
      # A file without a limit has "max", or a number near 2^63.
      if(lockstep_limit MATCHES "^[0-9]+$")
        math(EXPR lockstep_limit "${lockstep_limit} / 1048576")
        if(lockstep_limit LESS lockstep_memory)
          set(lockstep_memory ${lockstep_limit})
        endif()
      endif()
    endif()
  endforeach()
  math(EXPR lockstep_jobs "${lockstep_memory} / 2384")  # 2.5 GB in MiB
  cmake_host_system_information(RESULT lockstep_processors QUERY NUMBER_OF_LOGICAL_CORES)
  if(lockstep_jobs GREATER lockstep_processors)
    set(lockstep_jobs ${lockstep_processors})
  endif()
  if(lockstep_jobs LESS 1)
    set(lockstep_jobs 1)
  endif()
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS lockstep_compile=${lockstep_jobs})
set(CMAKE_JOB_POOL_COMPILE lockstep_compile)
