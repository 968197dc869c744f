//! The choice of sectors, and what `status` says of them.

use forebay_io::{Device, FileDevice, OpenOptions};

use crate::fixture::Fixture;
use crate::overwrite::Loop;

/// Whether a file can have sectors of 512 bytes here: not in a tmpfs. Reports why not.
fn small_sectors(fixture: &Fixture) -> bool {
    let path = fixture.path("probe");
    std::fs::write(&path, [0; 8192]).unwrap();
    let device = FileDevice::open(&path, &OpenOptions::default()).unwrap();
    let bytes = device.info().sector_bytes;
    if bytes > 512 {
        forebay_base::testing::skip("sectors", format!("files here have sectors of {bytes} bytes"));
    }
    bytes <= 512
}

#[test]
fn sectors_are_chosen_at_the_creation_and_shown_if_they_are_a_risk() {
    let fixture = Fixture::new();
    for (size, said) in [
        ("768", "the sector size cannot be 768 bytes; give a power of two from 512 to 4096"),
        ("256", "the sector size cannot be 256 bytes"),
        ("8K", "the sector size cannot be 8192 bytes"),
    ] {
        let line = fixture.fails(&["create", "no.img", "--size", "64M", "--sector", size]);
        assert!(line.contains(said), "{line}");
        assert!(!fixture.path("no.img").exists(), "it was created");
    }
    fixture.ok(&["create", "usual.img", "--size", "64M"]);
    let status = fixture.ok(&["status", "usual.img"]);
    assert!(!status.contains("caution"), "{status}");
    if !small_sectors(&fixture) {
        return;
    }
    fixture.ok(&["create", "small.img", "--size", "64M", "--sector", "512"]);
    let status = fixture.ok(&["status", "small.img"]);
    assert!(status.contains("sectors of 512 bytes on physical ones of 4096"), "{status}");
    let json = fixture.ok(&["status", "small.img", "--json"]);
    assert!(
        json.contains("\"sector_bytes\": 512") || json.contains("\"sector_bytes\":512"),
        "{json}"
    );

    // A device with larger physical sectors joins only on request.
    let add = ["expand", "small.img", "--add", "more.img", "--size", "64M"];
    let line = fixture.fails(&add);
    assert!(line.contains("has physical sectors of 4096 bytes"), "{line}");
    assert!(line.contains("--sector 512"), "{line}");
    fixture.ok(&[&add[..], &["--sector", "512"]].concat());
}

#[test]
fn status_tells_why_a_copy_goes_through_the_page_cache() {
    let fixture = Fixture::new();
    if !small_sectors(&fixture) {
        return;
    }
    fixture.ok(&["create", "tank.img", "--size", "64M", "--sector", "512"]);
    let Some(disk) = Loop::with_sectors(&fixture.path("tank.img"), 4096) else { return };
    let why =
        "through the page cache: its sectors are smaller than those of the medium, 4096 bytes";
    let status = fixture.ok(&["status", &disk.0]);
    assert!(status.contains(why), "{status}");
    fixture.ok(&["check", &disk.0]);
    let line = fixture.fails(&["create", &disk.0, "--force", "--sector", "512"]);
    assert!(line.contains("has sectors of 4096 bytes"), "{line}");
    fixture.ok(&["create", &disk.0, "--force", "--name", "large"]);
    let status = fixture.ok(&["status", &disk.0]);
    assert!(!status.contains("page cache") && !status.contains("caution"), "{status}");
}

/// Whether the process has the device open for writes through the page cache: synchronous ones.
fn writes_through_the_page_cache(pid: i64, device: &str) -> bool {
    let process = std::path::PathBuf::from(format!("/proc/{pid}"));
    let open = std::fs::read_dir(process.join("fd")).unwrap().flatten();
    let of_device = open.filter(|fd| {
        std::fs::read_link(fd.path()).is_ok_and(|target| target == std::path::Path::new(device))
    });
    let flags: Vec<u32> = of_device
        .map(|fd| {
            let about = std::fs::read_to_string(process.join("fdinfo").join(fd.file_name()));
            let about = about.unwrap();
            let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            u32::from_str_radix(flags.trim(), 8).unwrap()
        })
        .collect();
    assert!(!flags.is_empty(), "{device} is not open");
    flags.iter().any(|flags| flags & libc::O_DSYNC as u32 != 0)
}

#[test]
fn a_device_that_is_overwritten_is_not_opened_for_its_old_content() {
    let fixture = Fixture::new();
    if !small_sectors(&fixture) {
        return;
    }
    fixture.ok(&["create", "tank.img", "--size", "64M"]);
    fixture.ok(&["import", "tank.img"]);
    let pid = fixture.processes()[0]["pid"].as_i64().unwrap();
    let mut disks = Vec::new();
    for command in [&["expand", "tank", "--add"][..], &["l2", "add", "tank"]] {
        let old = format!("old-{}.img", command[0]);
        fixture.ok(&["create", &old, "--size", "64M", "--sector", "512"]);
        let Some(disk) = Loop::with_sectors(&fixture.path(&old), 4096) else { return };
        fixture.ok(&[command, &[&disk.0, "--force"]].concat());
        assert!(!writes_through_the_page_cache(pid, &disk.0), "{command:?}");
        let status = fixture.ok(&["status", "tank"]);
        assert!(!status.contains("page cache"), "{status}");
        disks.push(disk);
    }
    fixture.ok(&["export", "tank"]);
}
