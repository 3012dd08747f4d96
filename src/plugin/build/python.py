"""Looks at a plugin's module, natively, as its tests load it: what `anabranch plugin build` makes a world of.

Arguments: the module, and the folders that modules are looked for in. The last line of standard output is the answer.
"""

import importlib
import json
import os
import sys
import traceback

CAPABILITIES = ("http", "metrics", "query", "state")


def problem(text):
    print(json.dumps({"problem": text}))
    sys.exit()


module, *folders = sys.argv[1:]
sys.path[:0] = folders
try:
    project = importlib.import_module(module)
except Exception as error:  # noqa: BLE001 (whatever it is, it is the project's)
    # Without the ways of the interpreter itself.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "importlib" not in frame.filename]
    said = "".join(traceback.format_exception_only(error)).strip()
    sys.stderr.write("".join(traceback.format_list(frames)) + said + "\n")
    own = [frame for frame in frames if os.sep + "anabranch_sdk" + os.sep not in frame.filename]
    where = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    top = "what stands at its top runs when it is built, without a host"
    problem(f"the module {module} cannot be loaded: {type(error).__name__}: {error}{where}; {top}")
from anabranch_sdk import Plugin, SinkPlugin  # noqa: E402 (the project's copy)

plugin = getattr(project, "plugin", None)
if isinstance(plugin, Plugin):
    exports = ["transform"]
elif isinstance(plugin, SinkPlugin):
    optional = {"purge": plugin.purges, "generations": plugin.has_generations}
    exports = ["sink", *(name for name, has in optional.items() if has)]
else:
    problem(f"the module {module} ({project.__file__}) has no `plugin`, made by `transform(…)` or `sink(…)`")
uses = [name for name in CAPABILITIES if f"anabranch_sdk.{name}" in sys.modules]
print(json.dumps({"looked": {"exports": exports, "uses": uses}}))
