"""The build step of the package: compile the frame codecs when that can be done here.

A wheel gets the compiled modules and is then for this platform and interpreter; without a C compiler it is the plain
wheel. An editable install gets them beside its sources.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileCodecs(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("compile_codecs", root / "tools" / "compile_codecs.py")
        assert spec is not None
        assert spec.loader is not None
        tool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tool)
        reason = tool.why_not()
        if reason is not None:
            self.app.display_info(f"{reason}: the frame codecs are plain Python")
            return
        try:
            if not tool.up_to_date(root):
                tool.compile_into(root)
        except RuntimeError as error:
            self.app.display_warning(f"the frame codecs are plain Python: {error}")
            return
        if version == "editable":
            return
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        interpreter = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data["pure_python"] = False
        build_data["tag"] = f"{interpreter}-{interpreter}-{tag}"
        build_data["force_include"] = {str(root / "src" / name): name for name in tool.made_files(root)}
