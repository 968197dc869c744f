//! `--mirror A B --mirror C D`: groups of devices; `--log-device E F`: one group.
//!
//! A derived option would join the values of its occurrences, so this one is written by hand.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};

const ID: &str = "mirror";

/// The mirrors of a new pool, each with its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mirrors(pub(crate) Vec<Vec<PathBuf>>);

impl FromArgMatches for Mirrors {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let groups = matches.get_occurrences::<PathBuf>(ID).into_iter().flatten();
        Ok(Self(groups.map(|group| group.cloned().collect()).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Mirrors {
    fn augment_args(command: Command) -> Command {
        command.arg(
            Arg::new(ID)
                .long(ID)
                .value_name("DEVICE")
                .num_args(2..)
                .action(ArgAction::Append)
                .value_parser(value_parser!(PathBuf))
                .help(
                    "Mirror these devices: each has all blocks, and one suffices; may be repeated",
                ),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The devices of the intent log of a new pool: none, one, or a mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct LogDevices {
    /// Keep the intent log on this device, or on a mirror of these: fsync then waits for no other
    /// device. A file that does not exist is created, of 1 GiB at most
    #[arg(long = "log-device", value_name = "DEVICE", num_args = 1..)]
    pub(crate) log_devices: Vec<PathBuf>,
}
