//! `forebay completions`.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::error::{Failure, Result};
use crate::output;

pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "forebay", &mut script);
    let script = String::from_utf8(script);
    output::print(
        &script
            .map_err(|_| Failure::new("cannot generate completions: the script is not UTF-8"))?,
    );
    Ok(())
}
