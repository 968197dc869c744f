//! The choice of sectors, and what `status` says of them.

use crate::fixture::Fixture;
use crate::overwrite::Loop;

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
