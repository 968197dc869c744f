//! Mount flags as mount(8) names them.

use forebay_fs::AtimeMode;
use forebay_fuse::{Atime, MountFlags};
use serde::{Deserialize, Serialize};

/// When a read updates the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Access {
    #[default]
    Relative,
    Strict,
    Off,
}

/// Mount flags that a remount can change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flags {
    pub(crate) read_only: bool,
    pub(crate) no_suid: bool,
    pub(crate) no_dev: bool,
    pub(crate) no_exec: bool,
    pub(crate) atime: Access,
    pub(crate) no_dir_atime: bool,
    pub(crate) lazy_time: bool,
}

impl Flags {
    /// Option names that [`take`](Self::take) accepts, for messages.
    pub(crate) const NAMES: &str = "ro, rw, nosuid, suid, nodev, dev, noexec, exec, noatime, atime, relatime, strictatime, \
         nodiratime, diratime, lazytime, nolazytime, defaults";

    /// Applies the option of that name; later options win. Returns false for an unknown name.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        match name {
            "defaults" => {
                let Self { atime, no_dir_atime, lazy_time, .. } = *self;
                *self = Self { atime, no_dir_atime, lazy_time, ..Self::default() };
            }
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.no_suid = true,
            "suid" => self.no_suid = false,
            "nodev" => self.no_dev = true,
            "dev" => self.no_dev = false,
            "noexec" => self.no_exec = true,
            "exec" => self.no_exec = false,
            "noatime" => self.atime = Access::Off,
            "strictatime" => self.atime = Access::Strict,
            "atime" | "relatime" | "nostrictatime" => self.atime = Access::Relative,
            "nodiratime" => self.no_dir_atime = true,
            "diratime" => self.no_dir_atime = false,
            "lazytime" => self.lazy_time = true,
            "nolazytime" => self.lazy_time = false,
            // mount(8) implies these for mounts by users other than root.
            "user" | "users" => (self.no_suid, self.no_dev, self.no_exec) = (true, true, true),
            "owner" | "group" => (self.no_suid, self.no_dev) = (true, true),
            _ => return false,
        }
        true
    }

    /// These flags with the current state of the kernel, which mount(8) can change without this
    /// program.
    pub(crate) fn as_the_kernel_has(self, shown: &MountFlags) -> Self {
        Self {
            read_only: shown.read_only,
            no_suid: shown.no_suid,
            no_dev: shown.no_dev,
            no_exec: shown.no_exec,
            no_dir_atime: shown.no_dir_atime,
            lazy_time: self.lazy_time,
            atime: match shown.atime {
                Atime::Relative => Access::Relative,
                Atime::Strict => Access::Strict,
                Atime::Off => Access::Off,
            },
        }
    }

    /// The flags for the kernel.
    pub(crate) fn for_kernel(self) -> MountFlags {
        let mut flags = MountFlags::default();
        flags.read_only = self.read_only;
        flags.no_suid = self.no_suid;
        flags.no_dev = self.no_dev;
        flags.no_exec = self.no_exec;
        flags.no_dir_atime = self.no_dir_atime;
        flags.lazy_time = self.lazy_time;
        flags.atime = match self.atime {
            Access::Relative => Atime::Relative,
            Access::Strict => Atime::Strict,
            Access::Off => Atime::Off,
        };
        flags
    }

    /// The access time mode for the file system. A read-only mount updates none.
    pub(crate) fn atime_mode(self) -> AtimeMode {
        match self.atime {
            _ if self.read_only => AtimeMode::Off,
            Access::Relative => AtimeMode::Relative,
            Access::Strict => AtimeMode::Strict,
            Access::Off => AtimeMode::Off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(list: &str) -> Flags {
        let mut flags = Flags::default();
        list.split(',').for_each(|name| assert!(flags.take(name), "{name}"));
        flags
    }

    #[test]
    fn later_options_win_and_every_name_is_known() {
        let flags = taken("nosuid,ro,noatime,suid,rw,strictatime");
        assert_eq!(flags, Flags { atime: Access::Strict, ..Flags::default() });
        assert_eq!(taken("noatime,nosuid,defaults").atime, Access::Off);
        let user = taken("user,exec");
        assert!(user.no_suid && user.no_dev && !user.no_exec);
        for name in Flags::NAMES.split(',').map(str::trim) {
            assert!(Flags::default().take(name), "{name}");
        }
        assert!(!Flags::default().take("dirsync"));
    }
}
