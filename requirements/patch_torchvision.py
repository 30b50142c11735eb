"""Make torchvision importable beside a CPU build of torch.

Its wheel is built for CUDA: the library with its operators cannot be loaded, and the import ends with
"operator torchvision::nms does not exist". The import needs only the signatures of two of them, which this
appends to torchvision's own loader; the image transforms are pure torch. Harmless where the
library loads, and when run again.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

MARK = "# LightRFT: signatures without the library"
LINES = f"""

{MARK}
if not _has_ops():
    _signatures = torch.library.Library("torchvision", "FRAGMENT")
    _signatures.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _signatures.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def main() -> int:
    found = find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        print("torchvision is not installed", file=sys.stderr)
        return 1
    loader = Path(found.submodule_search_locations[0]) / "extension.py"
    text = loader.read_text()
    if MARK not in text:
        loader.write_text(text + LINES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
