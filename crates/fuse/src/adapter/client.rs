//! What the file system asks of the kernel, and of the system around it.

use forebay_fs::{Caller, Ino};

use crate::transport::KernelNotifier;

/// The kernel behind the mount.
pub(super) struct Client(pub(super) KernelNotifier);

impl forebay_fs::Client for Client {
    fn mode_changed(&self, ino: Ino) {
        self.0.invalidate_attributes(ino.0);
    }

    /// By the list of the process: a request names one group only.
    fn is_member(&self, caller: Caller, gid: u32) -> bool {
        caller.gid == gid || status(caller).is_some_and(|status| lists_group(&status, gid))
    }

    /// By the process's capabilities, which no request names. One that cannot be looked at has none.
    fn has_fsetid(&self, caller: Caller) -> bool {
        status(caller).is_some_and(|status| has_capability(&status, FSETID))
    }
}

/// Bit of `CAP_FSETID` in the masks of `/proc/PID/status`.
const FSETID: u32 = 4;

fn status(caller: Caller) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).ok()
}

/// Whether the text of `/proc/PID/status` has the capability in effect.
fn has_capability(status: &str, bit: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << bit) != 0)
}

/// Whether the text of `/proc/PID/status` has the group in its list.
fn lists_group(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().any(|group| group.parse() == Ok(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_process_are_read() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 24 27 \nNStgid:\t9\n";
        assert!(lists_group(status, 24) && !lists_group(status, 7) && !lists_group("", 0));
    }

    #[test]
    fn capabilities_of_a_process_are_read() {
        let all = "CapPrm:\t0\nCapEff:\t000001ffffffffff\n";
        assert!(has_capability(all, FSETID) && !has_capability("", FSETID));
        assert!(!has_capability("CapPrm:\t1ff\nCapEff:\t00000000000000ef\n", FSETID));
    }
}
