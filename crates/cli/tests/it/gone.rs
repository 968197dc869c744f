//! Both sides of a mirror go while a program reads from its mount, and come back.

use std::fs;

use crate::fixture::{Fixture, fuse, mounted, texts, wait_until};

const SIDES: [&str; 2] = ["a.img", "b.img"];

#[test]
fn a_reader_waits_until_both_sides_of_a_mirror_are_back() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let [a, b] = SIDES;
    fixture.ok(&["create", "--name", "tank", "--size", "64M", "--mirror", a, b]);
    let at = fixture.folder("at");
    let mount = || mounted(&fixture, &["mount", "a.img:b.img", "at", "-o", "noatime"], &at);
    let running = mount();
    let content: Vec<u8> = (0..4_u32 << 20).map(|at| (at % 251) as u8).collect();
    fs::write(at.join("file"), &content).expect("a file");
    running.signal(libc::SIGINT);
    assert!(running.wait().status.success());
    // Nothing of it is in memory now.
    let running = mount();
    let status = || texts(&fixture.run(&["status", "tank"])).0;
    wait_until("the last group", || status().contains(" 0 B dirty in memory"));
    for side in SIDES {
        fs::copy(fixture.path(side), fixture.path(&format!("{side}.kept"))).expect("a copy");
    }
    for side in SIDES {
        let file = fs::File::options().write(true).open(fixture.path(side));
        file.and_then(|file| file.set_len(0)).expect("it is emptied");
    }
    let file = at.join("file");
    let reader = std::thread::spawn(move || fs::read(file));
    wait_until("the suspension", || status().contains("suspended: transaction group"));
    let refused = fixture.fails(&["clear", "tank"]);
    assert!(refused.contains("is not back"), "{refused}");
    assert!(!reader.is_finished());
    for side in SIDES {
        fs::copy(fixture.path(&format!("{side}.kept")), fixture.path(side)).expect("it is back");
    }
    fixture.ok(&["clear", "tank"]);
    assert!(reader.join().expect("no panic").expect("it reads") == content);
    let healthy = status();
    assert!(healthy.contains("health     online"), "{healthy}");
    running.signal(libc::SIGINT);
    assert!(running.wait().status.success());
}
