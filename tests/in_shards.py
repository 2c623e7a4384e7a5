"""Runs the cases of a GoogleTest program in several processes at the same time, for programs that mostly wait.

    in_shards.py COUNT PROGRAM [ARGUMENT...]

Prints the output of each process. Exit status: 0 if all processes succeeded.
"""

import os
import subprocess
import sys
import tempfile


def main():
    count = int(sys.argv[1])
    processes = []
    for shard in range(count):
        output = tempfile.TemporaryFile()
        variables = {"GTEST_TOTAL_SHARDS": str(count), "GTEST_SHARD_INDEX": str(shard)}
        processes.append((subprocess.Popen(sys.argv[2:], stdout=output, stderr=subprocess.STDOUT,
                                           env=os.environ | variables), output))
    codes = []
    for process, output in processes:
        codes.append(process.wait())
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    sys.stdout.flush()
    return 0 if not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main())
