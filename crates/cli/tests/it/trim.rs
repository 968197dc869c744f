//! Free space goes back to the devices.

use std::os::unix::fs::MetadataExt;

use crate::fixture::Fixture;

fn trim(fixture: &Fixture, pool: &str) -> serde_json::Value {
    serde_json::from_str(&fixture.ok(&["trim", pool, "--json"])).expect("JSON")
}

#[test]
fn trim_discards_the_free_space_of_exported_and_imported_pools() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let kept = || std::fs::metadata(fixture.path("tank.img")).expect("the image").blocks() * 512;
    // The image gets blocks where the pool has none.
    let image = fixture.path("tank.img");
    let file = std::fs::File::options().write(true).open(&image).expect("the image");
    let middle = 40 << 20;
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 8 << 20], middle).expect("a write");
    drop(file);
    let before = kept();
    let said = fixture.ok(&["trim", "tank.img"]);
    assert!(said.contains("discarded"), "{said}");
    assert!(kept() + (6 << 20) < before, "{} of {before}", kept());

    fixture.ok(&["import", "tank.img"]);
    let report = trim(&fixture, "tank");
    assert_eq!((&report["complete"], &report["error_count"]), (&true.into(), &0.into()));
    assert!(report["bytes"].as_u64() > Some(32 << 20), "{report}");
    fixture.ok(&["export", "tank"]);

    fixture.ok(&["import", "tank.img", "--read-only"]);
    let refused = fixture.fails(&["trim", "tank"]);
    assert!(refused.contains("for reading only"), "{refused}");
    fixture.ok(&["export", "tank"]);
    let said = fixture.ok(&["check", "tank.img"]);
    assert!(said.contains("no problems found"), "{said}");
}
