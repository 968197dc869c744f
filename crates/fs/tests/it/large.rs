//! Large files are freed in steps, and their space becomes available.

use forebay_fs::{Handle, SetAttr};

use crate::common::{Fixture, ME, MIB, ROOT, counter, file, unmount, write};

#[test]
fn a_large_file_is_destroyed_in_steps_and_its_space_is_freed() {
    let fixture = Fixture::new(512 * MIB);
    let fs = fixture.mount();
    let used = |fs: &forebay_fs::FileSystem| {
        // Freed space becomes available some transaction groups later.
        (0..4).for_each(|_| fs.pool().sync().unwrap());
        fs.pool().stats().allocated_bytes
    };
    let before = used(&fs);
    let (ino, handle) = file(&fs, ROOT, b"large");
    let mib = vec![3; MIB as usize];
    // Two ranges far apart, each longer than two steps.
    for at in 0..160 {
        write(&fs, ino, at * MIB, &mib);
        if at % 4 == 0 {
            write(&fs, ino, (1 << 50) + at * MIB, &mib);
        }
    }
    let full = used(&fs);
    assert!(full > before + 190 * MIB, "{full} {before}");
    // Truncation frees the far range.
    fs.setattr(ino, &SetAttr { size: Some(150 * MIB), ..SetAttr::default() }, ME).unwrap();
    assert!(used(&fs) < full - 45 * MIB);
    fs.unlink(ROOT, b"large").unwrap();
    assert!(used(&fs) > before + 140 * MIB);
    fs.release(handle);
    fs.forget(ino, 1);
    fs.wait_for_reclaim();
    let after = used(&fs);
    assert!(after < before + MIB, "{after} {before}");
    let steps = counter(&fs, "steps_freed");
    assert!(steps >= 2, "{steps}");
    assert_eq!(
        fs.seek(ino, Handle(ino.0), 0, forebay_fs::Seek::Data).unwrap_err().kind(),
        forebay_fs::ErrorKind::Stale
    );
    unmount(fs);
}
