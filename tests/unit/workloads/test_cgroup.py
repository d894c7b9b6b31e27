"""Cgroup ids of this host's cgroupfs, and of directories that stand in for other modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_probe.workloads.cgroup import MOST_CGROUPS, MOST_PATH_BYTES, WALK_PAUSE_S, Cgroups, memberships

MakeCgroup = Callable[[Path], Path]
Mount = Callable[..., Cgroups]


class Clock:
    """A clock that stands until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mount(tmp_path: Path, clock: Clock) -> Mount:
    """Return a function that makes the cgroups of a host with the given mounts.

    A mount is a line of (root, mount point, file system, options).
    """

    def mount(*mounts: tuple[str, Path | str, str, str]) -> Cgroups:
        lines = (
            f"{31 + i} 23 0:{28 + i} {root} {point} rw,nosuid shared:{i} - {filesystem} cgroup {options}\n"
            for i, (root, point, filesystem, options) in enumerate(mounts)
        )
        mountinfo = tmp_path / "proc/self/mountinfo"
        mountinfo.parent.mkdir(parents=True, exist_ok=True)
        mountinfo.write_text("22 27 0:21 / /proc rw - proc proc rw\n" + "".join(lines))
        return Cgroups(tmp_path / "proc", clock)

    return mount


def made(directory: Path) -> int:
    """Make a directory; return its inode number, which is a cgroup's id."""
    directory.mkdir(parents=True)
    return directory.stat().st_ino


def of_ended(cgroups: Cgroups, cgroup_id: int, cgroup_v1_id: int = 0) -> list[str]:
    """Return the paths that are found without a process."""
    return list(cgroups.candidates(cgroup_id, cgroup_v1_id, {}))


V2 = ("/", "/sys/fs/cgroup", "cgroup2", "rw,nsdelegate")
HYBRID = ("/", "/sys/fs/cgroup/unified", "cgroup2", "rw")
MEMORY = ("/", "/sys/fs/cgroup/memory", "cgroup", "rw,memory")
CPU = ("/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct")
PIDS = ("/", "/sys/fs/cgroup/pids", "cgroup", "rw,pids")
SYSTEMD = ("/", "/sys/fs/cgroup/systemd", "cgroup", "rw,xattr,name=systemd")


@pytest.mark.parametrize(
    ("mounts", "mode", "controller"),
    [
        ([V2], "v2", None),
        ([HYBRID, CPU, PIDS, SYSTEMD], "hybrid", "pids"),
        ([SYSTEMD, CPU, PIDS, MEMORY], "v1", "memory"),
        ([SYSTEMD, CPU], "v1", "cpu"),
        ([SYSTEMD], "v1", None),
        ([], "none", None),
    ],
)
def test_the_mode_follows_from_the_mounts(
    mount: Mount, mounts: list[tuple[str, str, str, str]], mode: str, controller: str | None
) -> None:
    cgroups = mount(*mounts)
    assert cgroups.mode == mode
    assert cgroups.v1_controller == controller


def test_the_mode_of_this_host_is_the_one_its_mount_points_show() -> None:
    shown = {
        "v2": Path("/sys/fs/cgroup/cgroup.controllers"),
        "hybrid": Path("/sys/fs/cgroup/unified/cgroup.controllers"),
    }
    expected = next((mode for mode, path in shown.items() if path.exists()), None)
    if expected is None:
        pytest.skip("cgroupfs is not mounted where systemd mounts it")
    assert Cgroups().mode == expected


def test_mount_points_with_characters_that_the_kernel_does_not_escape_are_passed_over(
    tmp_path: Path, mount: Mount
) -> None:
    cgroup_id = made(tmp_path / "cgroup/a")
    cgroups = mount(("/", "/home/a\rb\vc", "fuse", "rw"), ("/", tmp_path / "cgroup", "cgroup2", "rw"))
    assert of_ended(cgroups, cgroup_id) == ["/a"]


def test_a_membership_line_stands_for_each_of_its_controllers() -> None:
    text = "5:cpu,cpuacct:/a:b\n1:name=systemd:/user.slice\n0::/gone (deleted)\n"
    assert memberships(text) == {"cpu": "/a:b", "cpuacct": "/a:b", "name=systemd": "/user.slice", "": "/gone"}


def test_a_real_cgroup_is_found_by_its_id_until_it_is_removed(make_cgroup: MakeCgroup) -> None:
    mounts = {"hybrid": Path("/sys/fs/cgroup/unified"), "v2": Path("/sys/fs/cgroup")}
    cgroup = make_cgroup(mounts[Cgroups().mode])
    child = cgroup / "worker"
    cgroup_id = made(child)
    assert of_ended(Cgroups(), cgroup_id) == [f"/{cgroup.name}/worker"]
    child.rmdir()
    assert of_ended(Cgroups(), cgroup_id) == []


def test_a_cgroup_is_found_without_its_process(mount: Mount, tmp_path: Path) -> None:
    cgroup_id = made(tmp_path / "cgroup/system.slice/kafka.service")
    cgroups = mount(("/", tmp_path / "cgroup", "cgroup2", "rw"))
    assert of_ended(cgroups, cgroup_id) == ["/system.slice/kafka.service"]
    assert of_ended(cgroups, (tmp_path / "cgroup").stat().st_ino) == ["/"]


def test_on_v1_ids_are_those_of_the_controller(mount: Mount, tmp_path: Path) -> None:
    in_pids, in_memory = made(tmp_path / "pids/docker/a"), made(tmp_path / "memory/docker/b")
    cgroups = mount(("/", tmp_path / "pids", "cgroup", "rw,pids"), ("/", tmp_path / "memory", "cgroup", "rw,memory"))
    assert of_ended(cgroups, 1, in_memory) == ["/docker/b"]
    assert of_ended(cgroups, 1, in_pids) == []


def test_on_a_hybrid_host_an_ended_process_has_a_path_of_each_version(mount: Mount, tmp_path: Path) -> None:
    in_v2, in_v1 = made(tmp_path / "unified/containerd.service"), made(tmp_path / "memory/docker/a")
    cgroups = mount(("/", tmp_path / "unified", "cgroup2", "rw"), ("/", tmp_path / "memory", "cgroup", "rw,memory"))
    assert of_ended(cgroups, in_v2, in_v1) == ["/containerd.service", "/docker/a"]


def test_a_mount_point_may_hold_a_blank(mount: Mount, tmp_path: Path) -> None:
    cgroup_id = made(tmp_path / "control groups/a")
    point = str(tmp_path / "control groups").replace(" ", r"\040")
    assert of_ended(mount(("/", point, "cgroup2", "rw")), cgroup_id) == ["/a"]


def test_the_mount_that_shows_most_is_walked(mount: Mount, tmp_path: Path) -> None:
    ours, hosts = tmp_path / "ours", tmp_path / "hosts"
    made(ours)
    cgroup_id = made(hosts / "system.slice")
    cgroups = mount(("/", ours, "cgroup2", "rw"), ("/../../..", hosts, "cgroup2", "rw"))
    assert of_ended(cgroups, cgroup_id) == ["/system.slice"]


def test_paths_below_a_mount_of_one_cgroup_start_with_its_path(mount: Mount, tmp_path: Path) -> None:
    cgroup_id = made(tmp_path / "cgroup/init")
    cgroups = mount(("/docker/abc", tmp_path / "cgroup", "cgroup2", "rw"))
    assert of_ended(cgroups, cgroup_id) == ["/docker/abc/init"]


def test_the_path_of_a_living_process_needs_no_walk(mount: Mount, tmp_path: Path, clock: Clock) -> None:
    cgroups = mount(("/", tmp_path / "cgroup", "cgroup2", "rw"))
    clock.now_s = -1.0
    cgroup_id = made(tmp_path / "cgroup/a")
    assert list(cgroups.candidates(cgroup_id, 0, {"": "/a"})) == ["/a"]
    assert of_ended(cgroups, cgroup_id) == []


def test_the_recorded_cgroup_counts_and_not_the_one_moved_to(mount: Mount, tmp_path: Path) -> None:
    recorded = made(tmp_path / "cgroup/recorded")
    made(tmp_path / "cgroup/now")
    cgroups = mount(("/", tmp_path / "cgroup", "cgroup2", "rw"))
    assert list(cgroups.candidates(recorded, 0, {"": "/now"})) == ["/recorded"]
    assert list(cgroups.candidates(recorded + 1_000_000, 0, {"": "/now"})) == ["/now"]


def test_unknown_ids_do_not_walk_without_pause(mount: Mount, tmp_path: Path, clock: Clock) -> None:
    cgroups = mount(("/", tmp_path / "cgroup", "cgroup2", "rw"))
    made(tmp_path / "cgroup")
    assert of_ended(cgroups, 1) == []
    cgroup_id = made(tmp_path / "cgroup/later")
    assert of_ended(cgroups, cgroup_id) == []
    clock.now_s += WALK_PAUSE_S
    assert of_ended(cgroups, cgroup_id) == ["/later"]


def test_of_very_many_cgroups_the_upper_ones_are_looked_at(mount: Mount, tmp_path: Path) -> None:
    service = made(tmp_path / "cgroup/z.slice/kafka.service")
    many = [made(tmp_path / f"cgroup/user.slice/delegated/{n}") for n in range(MOST_CGROUPS)]
    cgroups = mount(("/", tmp_path / "cgroup", "cgroup2", "rw"))
    assert of_ended(cgroups, service) == ["/z.slice/kafka.service"]
    # Beside the root, the slices, the service and the one that all others are in.
    assert sum(bool(of_ended(cgroups, cgroup_id)) for cgroup_id in many) == MOST_CGROUPS - 5


def test_a_cgroup_of_a_very_long_path_has_none(mount: Mount, tmp_path: Path) -> None:
    name = "x" * 255
    longest, longer = f"/{name}/{name}", f"/{name}/{name}/y"
    assert len(longest) == MOST_PATH_BYTES
    cgroup_ids = [made(tmp_path / f"cgroup{path}") for path in (longest, longer)]
    cgroups = mount(("/", tmp_path / "cgroup", "cgroup2", "rw"))
    assert [of_ended(cgroups, cgroup_id) for cgroup_id in cgroup_ids] == [[longest], []]


def test_without_cgroupfs_the_process_itself_tells(mount: Mount) -> None:
    assert list(mount().candidates(7, 0, {"": "/system.slice"})) == ["/system.slice"]
    assert of_ended(mount(), 7) == []


def test_v1_paths_follow_in_order_of_preference(mount: Mount, tmp_path: Path) -> None:
    cgroup_id = made(tmp_path / "cgroup/a")
    cgroups = mount(("/", tmp_path / "cgroup", "cgroup2", "rw"), PIDS)
    member_of = {"name=systemd": "/s", "pids": "/p", "memory": "/m", "freezer": "/f", "": "/a"}
    assert list(cgroups.candidates(cgroup_id, 0, member_of)) == ["/a", "/m", "/p", "/s"]
