//! `forebay-soak`: random work and faults on six pools that share a cache, in a process that is
//! killed again and again.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a tool")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use forebay_sim::soak::{PoolKind, Soak, child};

const HELP: &str =
    "usage: forebay-soak [--minutes N] [--seed N] [--folder EMPTY_FOLDER] [--l2] [--mirror]";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [child, folder, seed, l2, mirror] = &arguments[..]
        && child == "--child"
    {
        let [l2, mirror] = [l2, mirror].map(|text| text.parse().expect("a truth value"));
        let seed = seed.parse().expect("a seed");
        child::run(Path::new(folder), seed, PoolKind { l2, mirror });
        return ExitCode::SUCCESS;
    }
    let mut take = |option: &str| {
        let given = arguments.len();
        arguments.retain(|argument| argument != option);
        arguments.len() < given
    };
    let kind = PoolKind { l2: take("--l2"), mirror: take("--mirror") };
    let Some(soak) = parse(&arguments, kind) else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    if let Err(error) = std::fs::create_dir_all(&soak.folder) {
        eprintln!("forebay-soak: {}: {error}", soak.folder.display());
        return ExitCode::FAILURE;
    }
    println!("{soak:?}");
    let itself = std::env::current_exe().expect("a path of its own");
    let outcome = soak.run(|| {
        let mut command = Command::new(&itself);
        command.arg("--child");
        command
    });
    match outcome {
        Ok(summary) if summary.files.1 > summary.files.0 => {
            eprintln!("forebay-soak: the parent leaks open files: {summary:#?}");
            ExitCode::FAILURE
        }
        Ok(summary) => {
            println!("clean: {summary:#?}");
            let _ = std::fs::remove_dir_all(&soak.folder);
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("forebay-soak: {problem}\nthe pools are kept in {}", soak.folder.display());
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String], kind: PoolKind) -> Option<Soak> {
    let folder = std::env::temp_dir().join(format!("forebay-soak-{}", std::process::id()));
    let mut soak = Soak { time: Duration::from_secs(600), folder, seed: 1, kind };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return None };
        match name.as_str() {
            "--minutes" => soak.time = Duration::from_secs_f64(value.parse::<f64>().ok()? * 60.0),
            "--seed" => soak.seed = value.parse().ok()?,
            "--folder" => soak.folder = PathBuf::from(value),
            _ => return None,
        }
    }
    Some(soak)
}
