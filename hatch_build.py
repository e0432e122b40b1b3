"""The build step of the package: compile the frame codecs when that can be done here.

A wheel gets the compiled modules and is then for this platform and interpreter; without a C compiler it is the plain
wheel. It is made of what this interpreter has compiled already, or else compiled aside: building a wheel leaves the
checkout, and whoever works with it, alone. An editable install gets the modules beside its sources.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileCodecs(BuildHookInterface):
    PLUGIN_NAME = "custom"
    _aside: tempfile.TemporaryDirectory[str] | None = None

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
        place = root / "src"
        try:
            if tool.up_to_date(root):
                files = tool.made_files(root)
            elif version == "editable":
                tool.compile_into(root)
            else:
                self._aside = tempfile.TemporaryDirectory(prefix="trunkline-wheel-")
                place = Path(self._aside.name)
                files = tool.compile_to(root, place)
        except RuntimeError as error:
            self.app.display_warning(f"the frame codecs are plain Python: {error}")
            return
        if version == "editable":
            return
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        interpreter = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data["pure_python"] = False
        build_data["tag"] = f"{interpreter}-{interpreter}-{tag}"
        build_data["force_include"] = {str(place / name): name for name in files}

    def finalize(self, version: str, build_data: dict[str, object], artifact_path: str) -> None:
        if self._aside is not None:
            self._aside.cleanup()
