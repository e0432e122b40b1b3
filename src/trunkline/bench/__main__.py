"""`python -m trunkline.bench`: the same as `trunkline bench`."""

from trunkline.bench.cli import bench

if __name__ == "__main__":
    bench(prog_name="trunkline bench")
