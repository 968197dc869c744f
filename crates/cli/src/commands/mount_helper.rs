//! The helpers of mount(8) and umount(8), and the options of `-o`.
//!
//! `mount -t forebay SOURCE TARGET -o …` runs `mount.forebay SOURCE TARGET [-sfnv] [-o …]`. Under
//! that name, by a link or by the script in `packaging/`, this program runs `forebay mount SOURCE
//! TARGET --daemon -o …`. `umount TARGET` runs `umount.fuse.forebay TARGET [-nlfvr]`: the kernel
//! does not wait for a FUSE server, and the helper does.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::args::MountArgs;
use crate::error::{Failure, Result};
use crate::flags::{Access, Flags};
use crate::units::{self, parse_bytes};

/// Name of the helper for a mount.
const NAME: &str = "mount.forebay";
/// Name of the helper for a remount, after the type in the mount table.
const NAME_OF_TYPE: &str = "mount.fuse.forebay";
/// Names of the helper for an unmount: by the type in the mount table, and as mount(8) would name
/// it.
const NAMES_OF_UMOUNT: [&str; 2] = ["umount.fuse.forebay", "umount.forebay"];
/// Options of mount(8) itself, and options without effect here.
const IGNORED: [&str; 11] = [
    "auto", "noauto", "nouser", "nousers", "noowner", "nogroup", "nofail", "_netdev", "async",
    "silent", "loud",
];
/// Options that the kernel shows for a mount, and mount(8) repeats in a remount.
const KERNEL_SHOWN: [&str; 5] =
    ["user_id", "group_id", "rootmode", "default_permissions", "max_read"];
/// Options that Forebay does not support, with the alternative.
const REFUSED: [(&str, &str); 3] = [
    ("sync", "open files with O_SYNC, or call fsync"),
    ("dirsync", "call fsync on the directory"),
    ("mand", "Linux does not support mandatory locks any more"),
];

/// Translates the arguments if the program was called as a helper of mount(8) or umount(8).
pub(crate) fn arguments(given: &[OsString]) -> Option<Result<Vec<OsString>>> {
    let name = Path::new(given.first()?).file_name()?;
    if NAMES_OF_UMOUNT.iter().any(|of_umount| name == OsStr::new(of_umount)) {
        return Some(translate_umount(&given[1..]));
    }
    (name == OsStr::new(NAME) || name == OsStr::new(NAME_OF_TYPE)).then(|| translate(&given[1..]))
}

fn translate(given: &[OsString]) -> Result<Vec<OsString>> {
    let mut out: Vec<OsString> = ["forebay", "mount", "--daemon"].map(OsString::from).to_vec();
    let mut places = 0;
    let mut given = given.iter();
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("-o") => {
                let options = given.next().ok_or_else(|| {
                    Failure::usage("-o: no options are given; give a list such as ro,noatime")
                })?;
                out.push("-o".into());
                out.push(options.clone());
            }
            Some("-t") => {
                given.next();
            }
            // Flags of mount(8): sloppy, fake, no mtab, verbose.
            Some(flags)
                if flags.len() > 1
                    && flags.starts_with('-')
                    && flags[1..].chars().all(|c| "sfnvw".contains(c)) =>
            {
                if flags.contains('f') {
                    return Ok(["forebay", "--version"].map(OsString::from).to_vec());
                }
            }
            Some("-r") => out.push("--read-only".into()),
            _ => {
                places += 1;
                out.push(argument.clone());
            }
        }
    }
    match places {
        2 => Ok(out),
        _ => Err(Failure::usage(format!(
            "{NAME}: a pool and a mount point are needed: {NAME} SOURCE TARGET [-o OPTIONS]"
        ))),
    }
}

/// The arguments of umount(8): the mount point, and flags of one letter. `-t` and `-N` have a
/// value.
fn translate_umount(given: &[OsString]) -> Result<Vec<OsString>> {
    let mut out: Vec<OsString> = ["forebay", "umount", "--helper"].map(OsString::from).to_vec();
    let mut places = 0;
    let mut given = given.iter();
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("-t") => {
                given.next();
            }
            Some("-N") => {
                return Err(Failure::usage("-N: not supported; use `umount -i -N`"));
            }
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                let known = [('l', "--lazy"), ('f', "--force")];
                let known = known.into_iter().filter(|(flag, _)| flags.contains(*flag));
                out.extend(known.map(|(_, option)| OsString::from(option)));
            }
            _ => {
                places += 1;
                out.push(argument.clone());
            }
        }
    }
    match places {
        1 => Ok(out),
        _ => Err(Failure::usage(format!(
            "{}: a mount point is needed: {0} MOUNTPOINT [-lf]",
            NAMES_OF_UMOUNT[0]
        ))),
    }
}

/// Applies the options of `-o` to the other options.
///
/// # Errors
/// If an option is unknown or has a wrong value.
pub(crate) fn take_options(args: &mut MountArgs) -> Result<()> {
    let lists = std::mem::take(&mut args.options);
    for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty())
    {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("remount", None) => args.remount = true,
            ("kernel_cache", None) => args.kernel_cache = true,
            ("allow_other", None) => args.allow_other = true,
            ("separate", None) => args.separate = true,
            ("force", None) => args.import.force = true,
            ("follow" | "l2" | "l2_size", value) if args.import.readers.take(name, value)? => {}
            ("rewind", None) => args.import.rewind = true,
            ("txg", Some(value)) => {
                let wrong = || Failure::usage(format!("-o txg={value}: give a number"));
                args.import.txg = Some(value.parse().map_err(|_| wrong())?);
            }
            ("discard_log", None) => args.import.discard_log = true,
            ("dataset", Some(value)) => value.clone_into(&mut args.dataset),
            ("memory", Some(value)) => args.memory = Some(units::usage(parse_bytes(value))?),
            ("threads", Some(value)) => {
                let threads = value.parse().ok().filter(|threads| (1..=256).contains(threads));
                let wrong =
                    || Failure::usage(format!("-o threads={value}: give a number from 1 to 256"));
                args.threads = Some(threads.ok_or_else(wrong)?);
            }
            ("tunable", Some(value)) => {
                let (name, value) = value.split_once(':').ok_or_else(|| {
                    Failure::usage(format!("-o tunable={value}: give it as tunable=NAME:VALUE"))
                })?;
                args.import.tunables.push((name.to_owned(), value.to_owned()));
            }
            ("metrics", Some(value)) => {
                args.metrics.metrics = Some(units::usage(units::parse_address(value))?);
            }
            ("metrics_allow_remote", None) => args.metrics.metrics_allow_remote = true,
            ("metrics_names", None) => args.metrics.metrics_names = true,
            // mount(8) may pass user=NAME.
            (name, of) if (of.is_none() || name == "user") && args.flags.take(name) => {
                args.flag_names.push(name.to_owned());
            }
            (name, _) if is_ignored(name, value) => {}
            _ => {
                if let Some((_, hint)) = REFUSED.iter().find(|row| row.0 == option) {
                    let text = format!("-o {option}: forebay does not support it; {hint}");
                    return Err(Failure::usage(text));
                }
                return Err(Failure::usage(format!(
                    "-o {option}: no such option; valid options are {}, remount, dataset=NAME, memory=BYTES, \
                     kernel_cache, allow_other, threads=N, separate, force, follow, l2=FILE, l2_size=BYTES, rewind, \
                     txg=N, discard_log, tunable=NAME:VALUE, metrics=ADDRESS:PORT, metrics_allow_remote, metrics_names",
                    Flags::NAMES
                )));
            }
        }
    }
    // Options of the command line with the same meaning.
    if args.no_atime {
        args.flags.atime = Access::Off;
    }
    args.flags.read_only |= args.import.read_only;
    args.import.read_only |= args.flags.read_only;
    Ok(())
}

/// True if the option is not for this program.
fn is_ignored(name: &str, value: Option<&str>) -> bool {
    let of_mount = IGNORED.contains(&name) && value.is_none();
    let remark = ["x-", "X-"].iter().any(|start| name.starts_with(start)) || name == "comment";
    of_mount || remark || KERNEL_SHOWN.contains(&name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn parsed(given: &[&str]) -> Result<MountArgs> {
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        let translated = arguments(&given).unwrap()?;
        let Ok(Cli { command: Command::Mount(mut args), .. }) = Cli::try_parse_from(translated)
        else {
            return Err(Failure::usage("not a mount"));
        };
        take_options(&mut args)?;
        Ok(args)
    }

    #[test]
    fn arguments_of_umount_are_translated() {
        let translated = |line: &[&str]| {
            let given: Vec<OsString> = line.iter().map(OsString::from).collect();
            arguments(&given).unwrap().map_err(|failure| failure.message)
        };
        let line = ["/sbin/umount.fuse.forebay", "/srv", "-n", "-l", "-v", "-t", "fuse.forebay"];
        assert_eq!(translated(&line).unwrap(), ["forebay", "umount", "--helper", "/srv", "--lazy"]);
        assert!(translated(&["umount.forebay", "-l"]).unwrap_err().contains("mount point"));
        assert!(translated(&["umount.forebay", "/srv", "-N", "1"]).unwrap_err().contains("-i"));
    }

    #[test]
    fn arguments_of_mount_are_translated() {
        let line = [
            "/sbin/mount.forebay",
            "/dev/sdb",
            "/srv",
            "-n",
            "-o",
            "rw,noatime,memory=1G,x-systemd.automount",
        ];
        let args = parsed(&line).unwrap();
        assert_eq!(args.pool.as_deref(), Some("/dev/sdb"));
        assert_eq!(args.at.as_deref(), Some(Path::new("/srv")));
        assert!(args.daemon && !args.import.read_only);
        assert_eq!(args.flags, Flags { atime: Access::Off, ..Flags::default() });
        assert_eq!(args.memory, Some(1 << 30));
        let of_user = parsed(&["mount.forebay", "/dev/sdb", "/srv", "-o", "user=me,exec"]).unwrap();
        assert_eq!(of_user.flags, Flags { no_suid: true, no_dev: true, ..Flags::default() });
    }

    #[test]
    fn wrong_options_are_refused() {
        for line in [
            &["mount.forebay", "/dev/sdb"][..],
            &["mount.forebay", "/dev/sdb", "/srv", "-o"],
            &["mount.forebay", "/dev/sdb", "/srv", "-o", "fast"],
            &["mount.forebay", "/dev/sdb", "/srv", "-o", "nosuid,dirsync"],
            &["mount.forebay", "/dev/sdb", "/srv", "-o", "nosuid=1"],
            &["mount.forebay", "/dev/sdb", "/srv", "-o", "threads=0"],
            &["mount.forebay", "/dev/sdb", "/srv", "-o", "ro=1"],
        ] {
            assert_eq!(
                parsed(line).err().map(|failure| failure.code),
                Some(crate::error::USAGE),
                "{line:?}"
            );
        }
        assert!(arguments(&["forebay".into(), "mount".into()]).is_none());
    }
}
