//! The help: each example is a command line of the command that shows it.

use clap::{Command, CommandFactory};

use super::Cli;

/// The examples of a command's help that call this program, each without its description.
fn examples(command: &Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let shown = lines.take_while(|line| line.starts_with("  "));
    // The description stands behind two spaces; another program may come first.
    let line = |line: &str| line.trim().split("  ").next().unwrap_or_default().to_owned();
    let ours = |line: String| line.split(" && ").last().unwrap_or_default().to_owned();
    shown.map(line).map(ours).filter(|line| line.starts_with("forebay ")).collect()
}

/// Checks the examples of a command and of those below it; returns how many there are.
fn check(command: &Command, path: &[&str]) -> usize {
    let mut count = 0;
    for example in examples(command) {
        let words = example.split_whitespace().take_while(|word| *word != ">");
        let words: Vec<&str> = words.collect();
        assert!(words.starts_with(path), "help of {path:?} shows {example:?}");
        let parsed = Cli::command().try_get_matches_from(&words);
        assert!(parsed.is_ok(), "{example:?}: {parsed:?}");
        count += 1;
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        count += check(below, &[path, &[below.get_name()]].concat());
    }
    count
}

#[test]
fn every_example_is_a_command_line_of_its_command() {
    let count = check(&Cli::command(), &["forebay"]);
    assert!(count > 80, "only {count} examples were found");
}
