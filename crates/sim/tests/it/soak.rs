//! A short soak run.

use std::process::Command;
use std::time::Duration;

use forebay_sim::soak::Soak;

#[test]
fn a_moment_of_soak_is_clean() {
    [false, true].into_iter().for_each(soak);
}

fn soak(l2: bool) {
    let name = format!("forebay-soak-test-{}-{l2}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let soak = Soak { time: Duration::from_secs(3), folder: folder.clone(), seed: 1, l2 };
    let child = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-soak"));
        command.arg("--child");
        command
    };
    let summary = soak.run(child).unwrap_or_else(|problem| panic!("{problem}"));
    assert!(summary.rounds > 0, "{summary:?}");
    std::fs::remove_dir_all(folder).expect("the folder can go");
}
