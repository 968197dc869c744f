//! Services of the kernel and the system for the file system.

use forebay_fs::{Caller, Ino};

use crate::transport::KernelNotifier;

/// Implements the file system's client on a mount.
pub(super) struct Client(pub(super) KernelNotifier);

impl forebay_fs::Client for Client {
    fn mode_changed(&self, ino: Ino) {
        self.0.invalidate_attributes(ino.0);
    }

    /// Reads the supplementary groups from `/proc`, because a request has only one group.
    fn is_member(&self, caller: Caller, gid: u32) -> bool {
        caller.gid == gid || status(caller.pid).is_some_and(|status| lists_group(&status, gid))
    }

    /// Reads the capabilities from `/proc`, because requests do not have them. If that fails, the
    /// process has none.
    fn has_fsetid(&self, caller: Caller) -> bool {
        is_capable(caller.pid, FSETID)
    }

    /// Reads the pending signals from `/proc`, because the crate `fuser` does not pass interrupts
    /// on. The kernel turns every signal that ends a process into a pending `SIGKILL` of each of
    /// its threads.
    fn is_killed(&self, process: u32) -> bool {
        status(process).is_some_and(|status| has_pending(&status, libc::SIGKILL))
    }
}

/// Bit of `CAP_FSETID` in the masks of `/proc/PID/status`.
const FSETID: u32 = 4;
/// Bit of `CAP_SYS_ADMIN` there.
const SYS_ADMIN: u32 = 21;
/// What `/proc/PID/ns/user` leads to for processes of the initial user namespace. The kernel gives
/// it always this inode number (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// Whether a process has `CAP_SYS_ADMIN`; see [`is_capable`].
pub(crate) fn is_admin(pid: u32) -> bool {
    is_capable(pid, SYS_ADMIN)
}

/// Whether a process has a capability as the kernel's `capable` counts it: in the initial user
/// namespace. Every user can have all capabilities in a namespace of their own. A process that is
/// gone, or that this one may not look at, has none.
fn is_capable(pid: u32, bit: u32) -> bool {
    let is_initial = || {
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/user"));
        namespace.is_ok_and(|namespace| namespace.as_os_str() == INITIAL_USER_NAMESPACE)
    };
    status(pid).is_some_and(|status| has_capability(&status, bit)) && is_initial()
}

/// The status of a process or thread.
fn status(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

/// Whether the effective capabilities in `/proc/PID/status` include this bit.
fn has_capability(status: &str, bit: u32) -> bool {
    mask(status, "CapEff:").is_some_and(|mask| mask & (1 << bit) != 0)
}

/// Whether a signal is pending for the thread or its process, in `/proc/PID/status`.
fn has_pending(status: &str, signal: i32) -> bool {
    let pending = ["SigPnd:", "ShdPnd:"].into_iter().filter_map(|name| mask(status, name));
    pending.fold(0, |all, mask| all | mask) & (1 << (signal - 1)) != 0
}

/// The mask with this name in `/proc/PID/status`.
fn mask(status: &str, name: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Whether the groups in `/proc/PID/status` include `gid`.
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
    fn a_pending_kill_is_seen() {
        let text = |thread, process| format!("SigPnd:\t{thread}\nShdPnd:\t{process}\nSigBlk:\tf\n");
        let (none, kill) = ("0000000000000000", "0000000000000100");
        assert!(has_pending(&text(kill, none), libc::SIGKILL));
        assert!(has_pending(&text(none, kill), libc::SIGKILL));
        assert!(!has_pending(&text(none, "0000000000004000"), libc::SIGKILL));
        assert!(!has_pending("", libc::SIGKILL));
    }

    #[test]
    fn capabilities_of_a_process_are_read() {
        let all = "CapPrm:\t0\nCapEff:\t000001ffffffffff\n";
        assert!(has_capability(all, FSETID) && !has_capability("", FSETID));
        assert!(has_capability(all, SYS_ADMIN));
        assert!(!has_capability("CapEff:\t000001ffffdfffff\n", SYS_ADMIN));
        assert!(!has_capability("CapPrm:\t1ff\nCapEff:\t00000000000000ef\n", FSETID));
    }
}
