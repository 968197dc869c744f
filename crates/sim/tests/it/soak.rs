//! A short soak run.

use std::process::Command;
use std::time::Duration;

use forebay_sim::soak::{PoolKind, Soak};

#[test]
fn a_moment_of_soak_is_clean() {
    let (l2, mirror) = (true, true);
    let kinds = [
        PoolKind::default(),
        PoolKind { l2, ..PoolKind::default() },
        PoolKind { mirror, ..PoolKind::default() },
    ];
    kinds.into_iter().for_each(soak);
}

fn soak(kind: PoolKind) {
    let PoolKind { l2, mirror } = kind;
    let name = format!("forebay-soak-test-{}-{l2}-{mirror}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let seed = forebay_base::testing::seed(1);
    let soak = Soak { time: Duration::from_secs(3), folder: folder.clone(), seed, kind };
    let child = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-soak"));
        command.arg("--child");
        command
    };
    soak.run(child).unwrap_or_else(|problem| panic!("{problem}"));
    std::fs::remove_dir_all(folder).expect("the folder can go");
}
