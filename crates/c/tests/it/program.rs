//! Compiles `program.c` against the header and the static library, and runs it.
//!
//! If the compiler has AddressSanitizer, the program uses it: for its own memory and for what it
//! gets from the library, whose allocations are those of malloc. It also finds leaks.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_base::testing::skip;

/// What a Rust library needs of the system.
const LIBRARIES: [&str; 3] = ["-lpthread", "-ldl", "-lm"];

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

fn assert_success(command: &mut Command) {
    let output = run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
}

/// The compiler of C: the environment's, or `cc`. `None` if it does not run.
fn compiler() -> Option<String> {
    let name = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let version = Command::new(&name).arg("--version").output();
    version.is_ok_and(|output| output.status.success()).then_some(name)
}

/// The library that cargo built with this test, beside it.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join(name);
    assert!(library.is_file(), "cargo did not build {}", library.display());
    library
}

/// Whether programs with AddressSanitizer can be built and run.
fn has_sanitizer(cc: &str, folder: &Path) -> bool {
    let (source, program) = (folder.join("empty.c"), folder.join("empty"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut build = Command::new(cc);
    build.arg("-fsanitize=address").arg(&source).arg("-o").arg(&program);
    run(&mut build).status.success() && run(&mut Command::new(&program)).status.success()
}

/// Builds the program with `more` arguments, and runs it.
fn build_and_run(cc: &str, folder: &Path, more: &[&str], library: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("program");
    let mut build = Command::new(cc);
    build.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"]).args(more);
    build.arg("-I").arg(root.join("include")).arg(root.join("tests/it/program.c"));
    build.arg(library).args(LIBRARIES).arg("-o").arg(&program);
    assert_success(&mut build);
    let mut command = Command::new(&program);
    command.arg(folder.join("cache")).env("LD_LIBRARY_PATH", library.parent().unwrap());
    assert_success(&mut command);
}

#[test]
fn a_program_in_c_uses_the_static_library() {
    let Some(cc) = compiler() else { return skip("cc", "no C compiler runs") };
    let folder = tempfile::tempdir().unwrap();
    let mut more = Vec::new();
    if has_sanitizer(&cc, folder.path()) {
        more.push("-fsanitize=address");
    } else {
        println!("without AddressSanitizer, which {cc} does not have");
    }
    build_and_run(&cc, folder.path(), &more, &library("libforebay_c.a"));
}

#[test]
fn a_program_in_c_uses_the_shared_library() {
    let Some(cc) = compiler() else { return skip("cc", "no C compiler runs") };
    let folder = tempfile::tempdir().unwrap();
    build_and_run(&cc, folder.path(), &[], &library("libforebay_c.so"));
}

#[test]
fn the_header_is_valid_c_plus_plus() {
    let Some(cc) = compiler() else { return skip("cc", "no C compiler runs") };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("header.cc");
    std::fs::write(&source, "#include \"forebay.h\"\n").unwrap();
    let mut check = Command::new(&cc);
    check.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-I"]);
    check.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include")).arg(&source);
    let output = run(&mut check);
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("cc1plus") {
        return skip("c++", "the compiler has no C++");
    }
    assert!(output.status.success(), "{text}");
}

#[test]
fn the_example_of_the_readme_runs() {
    let Some(cc) = compiler() else { return skip("cc", "no C compiler runs") };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```c\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("example.c"), folder.path().join("example"));
    std::fs::write(&source, example).unwrap();
    let mut build = Command::new(&cc);
    build.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root.join("include"));
    build.arg(&source).arg(library("libforebay_c.a")).args(LIBRARIES).arg("-o").arg(&program);
    assert_success(&mut build);
    assert_eq!(run(&mut Command::new(&program)).stdout, b"index");
}
