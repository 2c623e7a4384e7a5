"""Prints the curves that TensorBoard finds in a folder, as JSON: {name: [[step, value], …]}.

    run_log_curves.py FOLDER
"""

import json
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(missing)
    sys.exit(77)

curves = EventAccumulator(sys.argv[1])
curves.Reload()
print(json.dumps({name: [[one.step, one.value] for one in curves.Scalars(name)]
                  for name in curves.Tags()["scalars"]}))
