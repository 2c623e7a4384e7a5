! The same training as train.c, in Fortran.
!
!     gfortran -O2 -ffp-contract=off train.f90 -llockstep_c -o train
!     lockstep run -n 2 ./train parameters.bin
module lockstep
  use iso_c_binding
  implicit none
  integer(c_int32_t), parameter :: lockstep_float64 = 1, lockstep_avg = 1
  interface
    integer(c_int32_t) function lockstep_init(backend, timeout, world) bind(c)
      import :: c_int32_t, c_double, c_ptr
      type(c_ptr), value :: backend
      real(c_double), value :: timeout
      type(c_ptr), intent(out) :: world
    end function
    integer(c_int32_t) function lockstep_rank(group) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: group
    end function
    integer(c_int32_t) function lockstep_size(group) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: group
    end function
    integer(c_int32_t) function lockstep_all_reduce(group, data, count, dtype, op, work) bind(c)
      import :: c_int32_t, c_size_t, c_double, c_ptr
      type(c_ptr), value :: group
      real(c_double), intent(inout) :: data(*)
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, op
      type(c_ptr), value :: work
    end function
    integer(c_int32_t) function lockstep_averager_create(group, counts, n, dtype, wire, averager) bind(c)
      import :: c_int32_t, c_size_t, c_ptr
      type(c_ptr), value :: group
      integer(c_size_t), intent(in) :: counts(*)
      integer(c_size_t), value :: n
      integer(c_int32_t), value :: dtype
      type(c_ptr), value :: wire
      type(c_ptr), intent(out) :: averager
    end function
    integer(c_int32_t) function lockstep_average(averager, arrays) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: averager
      type(c_ptr), intent(in) :: arrays(*)
    end function
    subroutine lockstep_averager_free(averager) bind(c)
      import :: c_ptr
      type(c_ptr), value :: averager
    end subroutine
    subroutine lockstep_group_free(group) bind(c)
      import :: c_ptr
      type(c_ptr), value :: group
    end subroutine
    type(c_ptr) function lockstep_error_text() bind(c)
      import :: c_ptr
    end function
    integer(c_size_t) function strlen(text) bind(c)
      import :: c_size_t, c_ptr
      type(c_ptr), value :: text
    end function
  end interface
contains
  ! Ends the program with the error of the last call.
  subroutine check(status)
    integer(c_int32_t), intent(in) :: status
    type(c_ptr) :: text
    character(kind=c_char), pointer :: letters(:)
    if (status == 0) return
    text = lockstep_error_text()
    call c_f_pointer(text, letters, [strlen(text)])
    write (0, *) 'train: ', letters
    stop 1
  end subroutine
end module

program train
  use iso_c_binding
  use lockstep
  implicit none
  integer, parameter :: inputs = 8, hidden = 16, samples = 32, steps = 50
  real(c_double), parameter :: learning_rate = 0.05d0
  ! Columns are contiguous, as rows are in C: w1(:, h) are the weights of hidden unit h.
  real(c_double), target :: w1(inputs, hidden), b1(hidden), w2(hidden), b2(1)
  real(c_double), target :: gw1(inputs, hidden), gb1(hidden), gw2(hidden), gb2(1)
  real(c_double) :: x(inputs, samples), y(samples), loss(1)
  type(c_ptr) :: world, averager, gradients(4)
  integer :: i, unit
  character(len=4096) :: path

  call check(lockstep_init(c_null_ptr, 0d0, world))
  call make_parameters()
  call make_samples(lockstep_rank(world))
  gradients = [c_loc(gw1), c_loc(gb1), c_loc(gw2), c_loc(gb2)]
  call check(lockstep_averager_create(world, [int(hidden * inputs, c_size_t), int(hidden, c_size_t), &
      int(hidden, c_size_t), 1_c_size_t], 4_c_size_t, lockstep_float64, c_null_ptr, averager))
  do i = 1, steps
    call backward(loss(1))
    call check(lockstep_average(averager, gradients))
    w1 = w1 - learning_rate * gw1
    b1 = b1 - learning_rate * gb1
    w2 = w2 - learning_rate * gw2
    b2 = b2 - learning_rate * gb2
  end do
  call check(lockstep_all_reduce(world, loss, 1_c_size_t, lockstep_float64, lockstep_avg, c_null_ptr))
  if (lockstep_rank(world) == 0) then
    if (command_argument_count() > 0) then
      call get_command_argument(1, path)
      open (newunit=unit, file=trim(path), access='stream', form='unformatted', status='replace')
      write (unit) w1, b1, w2, b2
      close (unit)
    end if
    write (*, '(a, f8.6, a, i0, a, i0, a)') 'loss ', loss(1), ' after ', steps, ' steps on ', lockstep_size(world), ' ranks'
  end if
  call lockstep_averager_free(averager)
  call lockstep_group_free(world)

contains

  ! The next number of a linear congruential generator, in -0.5 ... 0.5.
  real(c_double) function next(state)
    integer(c_int64_t), intent(inout) :: state
    state = iand(state * 1664525_c_int64_t + 1013904223_c_int64_t, 4294967295_c_int64_t)
    next = real(ishft(state, -8), c_double) / 16777216d0 - 0.5d0
  end function

  subroutine make_parameters()
    integer(c_int64_t) :: state
    integer :: h, k
    state = 1
    do h = 1, hidden
      do k = 1, inputs
        w1(k, h) = next(state)
      end do
    end do
    do h = 1, hidden
      b1(h) = next(state)
    end do
    do h = 1, hidden
      w2(h) = next(state)
    end do
    b2(1) = next(state)
  end subroutine

  subroutine make_samples(rank)
    integer(c_int32_t), intent(in) :: rank
    integer(c_int64_t) :: state
    integer :: s, k
    state = 1000 + rank
    do s = 1, samples
      do k = 1, inputs
        x(k, s) = next(state)
      end do
      y(s) = 0
      do k = 1, inputs - 1
        y(s) = y(s) + x(k, s) * x(k + 1, s)
      end do
    end do
  end subroutine

  ! The gradients of the mean squared error over this rank's samples.
  subroutine backward(mean)
    real(c_double), intent(out) :: mean
    real(c_double) :: a(hidden), z, output, error, g, gz
    integer :: s, h, k
    mean = 0
    gw1 = 0
    gb1 = 0
    gw2 = 0
    gb2 = 0
    do s = 1, samples
      output = b2(1)
      do h = 1, hidden
        z = b1(h)
        do k = 1, inputs
          z = z + w1(k, h) * x(k, s)
        end do
        a(h) = max(z, 0d0)
      end do
      do h = 1, hidden
        output = output + w2(h) * a(h)
      end do
      error = output - y(s)
      g = error * (2d0 / samples)
      mean = mean + error * error
      gb2(1) = gb2(1) + g
      do h = 1, hidden
        gw2(h) = gw2(h) + g * a(h)
        gz = merge(g * w2(h), 0d0, a(h) > 0)
        gb1(h) = gb1(h) + gz
        do k = 1, inputs
          gw1(k, h) = gw1(k, h) + gz * x(k, s)
        end do
      end do
    end do
    mean = mean / samples
  end subroutine
end program
